// Draws one dashboard with Grafana's own components. This is a preview, not Grafana: what Grafana
// keeps to itself (variables, transformations in general, state timelines, tables) is done here.
import { FieldType, ThemeContext, applyFieldOverrides, createTheme, reduceField, toDataFrame } from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';

const { dashboard, answers, from, to } = window.PREVIEW;
const theme = createTheme({ colors: { mode: 'dark' } });
const WIDTH = 1600;
const COLUMN = WIDTH / 24;
const ROW = 36;
const GAP = 8;
const HEAD = 56;

const legendOf = (target, labels) =>
  target.legendFormat === '__auto'
    ? Object.entries(labels).map(([name, value]) => `${name}=${value}`).join(' ') || 'Value'
    : target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '').trim();

// A frame a series; the panel's settings go into the field, as Grafana's registry does there.
function series(panel) {
  const { defaults } = panel.fieldConfig;
  const data = panel.targets.flatMap((target) =>
    (answers[panel.id]?.[target.refId] ?? []).map((row) => {
      const points = row.values ?? [row.value];
      const name = legendOf(target, row.metric);
      return toDataFrame({
        refId: target.refId,
        name,
        fields: [
          { name: 'Time', type: FieldType.time, config: {}, values: points.map(([time]) => time * 1000) },
          {
            name: 'Value',
            type: FieldType.number,
            labels: row.metric,
            values: points.map(([, value]) => Number(value)),
            config: { ...defaults, displayNameFromDS: name },
          },
        ],
      });
    }),
  );
  const fieldConfig = { defaults, overrides: [] };
  return applyFieldOverrides({ data, fieldConfig, theme, replaceVariables: (text) => text, timeZone: 'utc' });
}

function lastValues(panel) {
  return series(panel).map((frame) => {
    const field = frame.fields[1];
    const [calculation] = panel.options.reduceOptions.calcs;
    const value = reduceField({ field, reducers: [calculation] })[calculation];
    return { field, shown: { ...field.display(value), title: field.config.displayNameFromDS } };
  });
}

const Stat = ({ panel, width, height }) => {
  const values = lastValues(panel);
  return values.map(({ shown }, number) => (
    <BigValue key={number} theme={theme} width={width / values.length} height={height}
      value={{ ...shown, title: values.length > 1 ? shown.title : undefined }}
      colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} />
  ));
};

const Bars = ({ panel, width, height }) => {
  const values = lastValues(panel);
  const max = Math.max(...values.map(({ shown }) => shown.numeric));
  const each = Math.min(44, height / values.length);
  return values.map(({ field, shown }, number) => (
    <div key={number} style={{ height: each }}>
      <BarGauge theme={theme} width={width} height={each - 6} value={shown} orientation="horizontal"
        field={{ ...field.config, min: 0, max }} display={field.display} displayMode={panel.options.displayMode}
        text={panel.options.text} showUnfilled={panel.options.showUnfilled} />
    </div>
  ));
};

const Lines = ({ panel, width, height }) => {
  const range = { from: { valueOf: () => from * 1000 }, to: { valueOf: () => to * 1000 }, raw: {} };
  const rows = Math.min(series(panel).length, 4);
  return (
    <TimeSeries frames={series(panel)} width={width} height={Math.max(height, 60 + rows * 20)} timeRange={range}
      timeZone="utc" legend={{ ...panel.options.legend, displayMode: 'list' }} />
  );
};

// Not on npm, so drawn here: a bar of states for each series.
const States = ({ panel, width }) => {
  const options = Object.assign({}, ...panel.fieldConfig.defaults.mappings.map(({ options }) => options));
  const label = 230;
  const scale = (width - label - 12) / (to - from);
  return (
    <div className="plain">
      {series(panel).map((frame, number) => {
        const times = frame.fields[0].values, values = frame.fields[1].values;
        const spans = [];
        times.forEach((time, at) => {
          const last = spans.at(-1);
          const until = (times[at + 1] ?? time) / 1000;
          if (last && last.value === values[at]) last.until = until;
          else spans.push({ value: values[at], since: time / 1000, until });
        });
        return (
          <div key={number} className="states">
            <span style={{ width: label }}>{frame.name}</span>
            <div style={{ width: width - label - 12 }}>
              {spans.map((span, at) => {
                const state = options[String(span.value)] ?? { text: String(span.value), color: 'text' };
                const colour = theme.visualization.getColorByName(state.color);
                return (
                  <b key={at} title={state.text} style={{
                    left: (span.since - from) * scale, width: Math.max(2, (span.until - span.since) * scale), background: colour,
                  }}>{state.text}</b>
                );
              })}
            </div>
          </div>
        );
      })}
    </div>
  );
};

// Grafana's table does not stand alone, so drawn here: the columns of filterFieldsByName and organize.
const Table = ({ panel }) => {
  const { indexByName, renameByName } = panel.transformations.find(({ id }) => id === 'organize').options;
  const columns = Object.keys(indexByName).sort((a, b) => indexByName[a] - indexByName[b]);
  const linked = new Set(panel.fieldConfig.overrides.map(({ matcher }) => matcher.options));
  const rows = panel.targets.flatMap(({ refId }) => answers[panel.id]?.[refId] ?? []);
  const [frame] = applyFieldOverrides({
    data: [toDataFrame({ fields: [{ name: 'Value', type: FieldType.number, values: rows.map(({ value }) => Number(value[1])), config: panel.fieldConfig.defaults }] })],
    fieldConfig: { defaults: panel.fieldConfig.defaults, overrides: [] }, theme, replaceVariables: (text) => text, timeZone: 'utc',
  });
  const text = (row, number, name) => {
    if (name !== 'Value') return row.metric[name] ?? '';
    const shown = frame.fields[0].display(frame.fields[0].values[number]);
    return `${shown.text}${shown.suffix ?? ''}`;
  };
  return (
    <table className="plain">
      <thead><tr>{columns.map((name) => <th key={name}>{renameByName[name]}</th>)}</tr></thead>
      <tbody>
        {rows.map((row, number) => (
          <tr key={number}>
            {columns.map((name) => (
              <td key={name} className={linked.has(renameByName[name]) ? 'link' : ''}>{text(row, number, name)}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
};

const BODIES = { stat: Stat, bargauge: Bars, timeseries: Lines, 'state-timeline': States, table: Table };
const MADE_HERE = new Set(['state-timeline', 'table']);

const Body = ({ panel, width, height }) => {
  const Kind = BODIES[panel.type];
  const rows = panel.targets.flatMap(({ refId }) => answers[panel.id]?.[refId] ?? []);
  if (!Kind) throw new Error(`no panel of kind ${panel.type}`);
  if (!rows.length) return <div className="nothing">{panel.fieldConfig.defaults.noValue}</div>;
  return <Kind panel={panel} width={width} height={height} />;
};

// What Grafana prints where a panel throws; the driver fails on it.
class Guard extends React.Component {
  state = {};
  static getDerivedStateFromError(error) { return { error }; }
  componentDidCatch(error) { window.PREVIEW_ERRORS.push(`${this.props.name}: ${error.message}`); }
  render() { return this.state.error ? <pre className="failed">{this.state.error.message}</pre> : this.props.children; }
}

const Panel = ({ panel }) => {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute', left: x * COLUMN, top: HEAD + y * ROW, width: w * COLUMN - GAP, height: h * ROW - GAP };
  if (panel.type === 'row') return <h2 style={place}>{panel.title}</h2>;
  return (
    <div style={place} data-panel={panel.id}>
      <PanelChrome title={panel.title} description={panel.description} width={w * COLUMN - GAP} height={h * ROW - GAP}>
        {(width, height) => (
          <Guard name={panel.title}>
            <Body panel={panel} width={width} height={height} />
            {MADE_HERE.has(panel.type) && <i className="made-here">drawn by the preview</i>}
          </Guard>
        )}
      </PanelChrome>
    </div>
  );
};

const height = HEAD + ROW * Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
const variables = dashboard.templating.list.filter(({ type }) => type === 'query');

const App = () => (
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <main style={{ width: WIDTH, height, background: theme.colors.background.canvas }}>
      <header>
        <strong>{dashboard.title}</strong>
        {variables.map(({ label }) => <span key={label}>{label}: All</span>)}
        <em>preview renderer, not Grafana</em>
      </header>
      {dashboard.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
    </main>
  </ThemeContext.Provider>
);

window.PREVIEW_ERRORS = [];
window.addEventListener('error', ({ message }) => window.PREVIEW_ERRORS.push(message));
window.PREVIEW_HEIGHT = height;
createRoot(document.getElementById('root')).render(<Guard name="dashboard"><App /></Guard>);
