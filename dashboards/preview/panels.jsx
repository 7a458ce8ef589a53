// The kinds of panel that Grafana's components on npm can draw, set up as Grafana does.
import { getDisplayValueAlignmentFactors, getFieldDisplayValues } from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, VizRepeater } from '@grafana/ui';
import { fieldConfigOf, replaceVariables, theme } from './frames.js';

function valuesOf({ panel, frames }) {
  return getFieldDisplayValues({
    data: frames,
    fieldConfig: fieldConfigOf(panel),
    reduceOptions: panel.options.reduceOptions,
    sparkline: (panel.options.graphMode ?? 'none') !== 'none',
    replaceVariables,
    theme,
    timeZone: 'utc',
  });
}

const Repeated = ({ all, ...rest }) => (
  <VizRepeater getValues={() => all} source={all} renderCounter={0}
    getAlignmentFactors={getDisplayValueAlignmentFactors} {...rest} />
);

export const Stat = ({ panel, frames, width, height }) => {
  const { options } = panel;
  return (
    <Repeated all={valuesOf({ panel, frames })} width={width} height={height} itemSpacing={3} autoGrid
      orientation={options.orientation}
      renderValue={({ value, count, ...place }) => (
        <BigValue theme={theme} value={value.display} sparkline={value.sparkline} count={count}
          width={place.width} height={place.height} alignmentFactors={count > 1 ? place.alignmentFactors : undefined}
          colorMode={options.colorMode} graphMode={options.graphMode} justifyMode={options.justifyMode}
          textMode={options.textMode} text={options.text} disableWideLayout={!options.wideLayout} />
      )} />
  );
};

export const Bars = ({ panel, frames, width, height }) => {
  const { options } = panel;
  const spacing = options.displayMode === 'lcd' ? 2 : 10;
  // Grafana leaves out the name of a bar that is alone.
  const shown = ({ display }, count) =>
    count === 1 && panel.fieldConfig.defaults.displayName === undefined ? { ...display, title: undefined } : display;
  return (
    <Repeated all={valuesOf({ panel, frames })} width={width} height={height} itemSpacing={spacing}
      orientation={options.orientation} minVizWidth={options.minVizWidth} minVizHeight={options.minVizHeight}
      maxVizHeight={options.maxVizHeight}
      renderValue={({ value, count, orientation, ...place }) => (
        <BarGauge theme={theme} value={shown(value, count)} field={value.field} orientation={orientation}
          display={value.view?.getFieldDisplayProcessor(value.colIndex)} width={place.width} height={place.height}
          alignmentFactors={count > 1 ? place.alignmentFactors : undefined} itemSpacing={spacing}
          displayMode={options.displayMode} showUnfilled={options.showUnfilled} text={options.text}
          valueDisplayMode={options.valueMode} namePlacement={options.namePlacement}
          isOverflow={(place.height + spacing) * count - spacing > height} />
      )} />
  );
};

const LAST_TIME_PX = 26; // half of the last time below a line, which would be cut

const marked = new WeakSet();
function mark(builder, annotations) {
  if (marked.has(builder)) return null;
  marked.add(builder);
  builder.setPadding([null, LAST_TIME_PX, null, null]);
  builder.addHook('draw', (plot) => {
    const { ctx, bbox } = plot;
    const bottom = bbox.top + bbox.height;
    ctx.save();
    for (const { colour, since, until } of annotations) {
      const [left, right] = [since, until].map((time) => plot.valToPos(time * 1000, 'x', true));
      ctx.fillStyle = ctx.strokeStyle = theme.visualization.getColorByName(colour);
      ctx.setLineDash([5, 5]);
      for (const x of [left, right]) {
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bottom);
        ctx.stroke();
      }
      ctx.globalAlpha = 0.1;
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.globalAlpha = 1;
      ctx.fillRect(left, bottom, Math.max(right - left, 4), 4);
    }
    ctx.restore();
  });
  return null;
}

export const Lines = ({ panel, frames, width, height, range, annotations }) => (
  <TimeSeries frames={frames} width={width} height={height} timeZone="utc" legend={panel.options.legend}
    timeRange={{ from: { valueOf: () => range.from * 1000 }, to: { valueOf: () => range.to * 1000 }, raw: {} }}>
    {(builder) => mark(builder, annotations)}
  </TimeSeries>
);
