// Draws one dashboard with Grafana's own components. This is a preview, not Grafana.
import { ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { Component } from 'react';
import { createRoot } from 'react-dom/client';
import { framesOf, theme } from './frames.js';
import { Bars, Lines, Stat } from './panels.jsx';
import { LastValues, States, Table } from './stand_ins.jsx';
import './page.css';

const { dashboard, answers, annotations, range, step } = window.PREVIEW;
const WIDTH = 1600;
const EDGE = 16;
const GAP = 8;
const COLUMN = (WIDTH - 2 * EDGE + GAP) / 24;
const ROW = 38; // a unit of height in Grafana: 30 and a gap
const HEAD = 64;

const KINDS = { stat: Stat, bargauge: Bars, timeseries: Lines };
const STAND_INS = { table: Table, 'state-timeline': States };
// Grafana writes a number's place even if there is none.
const WRITES_NOTHING_ITSELF = new Set(['stat', 'bargauge']);

const rowsOf = (frames) => frames.reduce((sum, { fields, length }) => sum + (fields.length ? length : 0), 0);

const Body = ({ panel, frames, ...place }) => {
  if (!rowsOf(frames) && !WRITES_NOTHING_ITSELF.has(panel.type)) {
    return <div className="nothing">{panel.fieldConfig?.defaults.noValue ?? 'No data'}</div>;
  }
  const Kind = KINDS[panel.type] ?? STAND_INS[panel.type] ?? LastValues;
  return <Kind panel={panel} frames={frames} range={range} step={step} annotations={annotations} {...place} />;
};

// What a panel throws is drawn in its place, and told to the driver.
class Guard extends Component {
  state = {};
  static getDerivedStateFromError(error) { return { error }; }
  componentDidCatch(error) { this.props.tell(error.message); }
  render() { return this.state.error ? <pre className="failed">{this.state.error.message}</pre> : this.props.children; }
}

const Panel = ({ panel, frames, error, tell }) => {
  const { x, y, w, h } = panel.gridPos;
  const place = { left: EDGE + x * COLUMN, top: HEAD + y * ROW, width: w * COLUMN - GAP, height: h * ROW - GAP };
  if (panel.type === 'row') return <h2 style={place}>{panel.title}</h2>;
  return (
    <div className="panel" style={place} data-panel={panel.id}>
      <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}
        displayMode={panel.transparent ? 'transparent' : 'default'}>
        {(width, height) =>
          error
            ? <pre className="failed">{error}</pre>
            : <Guard tell={tell}><Body panel={panel} frames={frames} width={width} height={height} /></Guard>}
      </PanelChrome>
      {!KINDS[panel.type] && <i className="stand-in">{panel.type}, drawn by the preview</i>}
    </div>
  );
};

const time = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace('T', ' ');

const Head = () => (
  <header>
    <strong>{dashboard.title}</strong>
    {dashboard.templating.list.filter(({ type }) => type !== 'datasource').map(({ name, label }) => <span key={name}>{label || name}: All</span>)}
    {dashboard.annotations.list.filter(({ builtIn }) => !builtIn).map(({ name, iconColor }) => (
      <span key={name}><b style={{ color: theme.visualization.getColorByName(iconColor) }}>┊</b> {name}</span>
    ))}
    <span className="range">{time(range.from)} to {time(range.to).slice(11)} UTC</span>
    <em>preview renderer, not Grafana</em>
  </header>
);

const report = {};
window.PREVIEW_ERRORS = [];
window.addEventListener('error', ({ message }) => window.PREVIEW_ERRORS.push(message));
window.addEventListener('unhandledrejection', ({ reason }) => window.PREVIEW_ERRORS.push(String(reason)));

const panels = await Promise.all(
  dashboard.panels.map(async (panel) => {
    const tell = (error) => { report[panel.id].error = error; };
    try {
      const frames = await framesOf(panel, answers[panel.id] ?? {}, step);
      report[panel.id] = { frames: frames.length, rows: rowsOf(frames), error: '' };
      return { panel, frames, tell };
    } catch (error) {
      report[panel.id] = { frames: 0, rows: 0, error: error.message };
      return { panel, error: error.message, tell };
    }
  }),
);
const height = HEAD + ROW * Math.max(...panels.map(({ panel: { gridPos } }) => gridPos.y + gridPos.h)) + GAP;

createRoot(document.getElementById('root')).render(
  <Guard tell={(error) => window.PREVIEW_ERRORS.push(error)}>
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <main style={{ width: WIDTH, height, background: theme.colors.background.canvas }}>
        <Head />
        {panels.map((one) => <Panel key={one.panel.id} {...one} />)}
      </main>
    </ThemeContext.Provider>
  </Guard>,
);
let changed = performance.now();
new MutationObserver(() => { changed = performance.now(); }).observe(document, { subtree: true, childList: true, attributes: true });
// What the driver asks for: nothing while the page is still being drawn.
window.previewReport = () =>
  document.querySelectorAll('[data-panel]').length && performance.now() - changed > 400 ? { panels: report, errors: window.PREVIEW_ERRORS, height } : null;
