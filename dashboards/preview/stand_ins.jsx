// Kinds of panel that are not on npm, drawn here; the page labels them.
import { FieldType, formattedValueToString, getFieldDisplayName } from '@grafana/data';
import { theme } from './frames.js';

const shown = (field, value) => (value === undefined ? '' : formattedValueToString(field.display(value)));

// The colours that a column's cells are set to.
function cellStyle(field, value) {
  const type = field.config.custom?.cellOptions?.type;
  const { color } = field.display(value);
  if (type === 'color-text') return { color };
  if (type === 'color-background') return { background: color, color: theme.colors.getContrastText(color) };
  return {};
}

export const Table = ({ frames }) => {
  const [frame] = frames;
  const fields = frame.fields.filter(({ config }) => !config.custom?.hideFrom?.viz && !config.custom?.hidden);
  const side = (field) => (field.type === FieldType.number ? 'number' : undefined);
  return (
    <table className="plain">
      <thead>
        <tr>{fields.map((field) => <th key={field.name} className={side(field)}>{getFieldDisplayName(field, frame, frames)}</th>)}</tr>
      </thead>
      <tbody>
        {Array.from({ length: frame.length }, (_, row) => (
          <tr key={row}>
            {fields.map((field) => {
              const value = field.values[row];
              const text = shown(field, value);
              const linked = text && field.config.links?.length;
              return (
                <td key={field.name} className={side(field)} style={cellStyle(field, value)}>
                  {linked ? <a>{text}</a> : text}
                </td>
              );
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
};

// The last value of each series: for every kind that nothing else draws.
export const LastValues = ({ frames }) => (
  <table className="plain">
    <tbody>
      {frames.flatMap((frame) =>
        frame.fields.filter(({ type }) => type === FieldType.number).map((field) => (
          <tr key={getFieldDisplayName(field, frame, frames)}>
            <td>{getFieldDisplayName(field, frame, frames)}</td>
            <td className="number">{shown(field, field.values.at(-1))}</td>
          </tr>
        )),
      )}
    </tbody>
  </table>
);

function spansOf(frame, step) {
  const [times, states] = frame.fields;
  const spans = [];
  times.values.forEach((time, at) => {
    const since = time / 1000;
    const last = spans.at(-1);
    if (last && last.value === states.values[at] && since - last.until < step / 2) last.until = since + step;
    else spans.push({ value: states.values[at], since, until: since + step });
  });
  return spans;
}

const TICKS = 5;
const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

const LETTER_PX = 7;

export const States = ({ frames, range, step, width: all }) => {
  const share = (seconds) => `${(100 * seconds) / (range.to - range.from)}%`;
  const rows = frames.flatMap((frame, number) => {
    const field = frame.fields[1];
    const states = spansOf(frame, step).map(({ value, since, until }) => {
      const { text, color } = field.display(value);
      const length = Math.min(until, range.to) - since;
      const fits = text.length * LETTER_PX < (all * 0.7 * length) / (range.to - range.from);
      const colours = { background: color, color: theme.colors.getContrastText(color) };
      return <b key={since} style={{ left: share(since - range.from), width: share(length), ...colours }}>{fits && text}</b>;
    });
    return [
      <span key={`name ${number}`}>{getFieldDisplayName(field, frame, frames)}</span>,
      <div key={`states ${number}`} className="state">{states}</div>,
    ];
  });
  return (
    <div className="states">
      {rows}
      <span />
      <div className="ticks">
        {Array.from({ length: TICKS }, (_, tick) => (
          <i key={tick}>{clock(range.from + ((range.to - range.from) * tick) / (TICKS - 1))}</i>
        ))}
      </div>
    </div>
  );
};
