// Checks dashboards against JSON schemas that are generated from the types of @grafana/schema.
//
//   node schema.mjs MODULES DASHBOARD.json ...
//
// One schema a file of types, since panels name their types alike. A line a problem; ends with 1
// if there is one.
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join, resolve } from 'node:path';

const [folder, ...files] = process.argv.slice(2);
const modules = resolve(folder);
const require = createRequire(join(modules, 'package.json'));
const { createGenerator } = require('ts-json-schema-generator');
const Ajv = require('ajv').default;
const RAW = join(modules, 'node_modules/@grafana/schema/dist/types/raw');
const KINDS = ['stat', 'bargauge', 'timeseries', 'state-timeline', 'table', 'row'];
// What an override may name; Grafana passes over what it does not know.
const MATCHERS = ['byName', 'byRegexp', 'byType', 'byTypes', 'byNames', 'byFrameRefID', 'byValue', 'numeric', 'time'];
const SETTINGS = [
  'unit', 'min', 'max', 'fieldMinMax', 'decimals', 'displayName', 'color', 'noValue', 'links', 'actions', 'mappings',
  'thresholds', 'filterable', 'description',
];

// What Grafana takes and its types leave out.
const ALLOWED = [
  // The query of an annotation is its data source's business; the type is that of Grafana's own.
  [/^\/annotations\/list\/\d+$/, ['tagKeys', 'textFormat', 'titleFormat', 'useValueForTime']],
  [/^\/annotations\/list\/\d+\/target$/, ['expr', 'interval', 'legendFormat', 'refId', 'limit', 'matchAny', 'tags', 'type']],
  // The text of a variable's query, which Grafana writes for Prometheus.
  [/^\/templating\/list\/\d+$/, ['definition']],
];

function validator(path, type) {
  if (!existsSync(path)) return null;
  const types = readFileSync(path, 'utf8');
  if (!new RegExp(`export (interface|type) ${type}\\b`).test(types)) return null;
  const schema = createGenerator({ path, type, skipTypeCheck: true, additionalProperties: false }).createSchema(type);
  return new Ajv({ allErrors: true, strict: false }).compile(schema);
}

const made = new Map();
function ofPanel(kind, type) {
  const key = `${kind}/${type}`;
  if (!made.has(key)) {
    const path = join(RAW, 'composable', kind.replace('-', ''), 'panelcfg/x/types.gen.d.ts');
    made.set(key, validator(path, type));
  }
  return made.get(key);
}

let problems = 0;
function tell(file, pointer, text) {
  problems += 1;
  console.log(`${basename(file)}: ${pointer || '/'}: ${text}`);
}

function check(file, pointer, validate, value) {
  if (!validate || validate(value)) return;
  for (const error of validate.errors) {
    const name = error.params.additionalProperty ?? error.params.missingProperty;
    const allowed = ALLOWED.some(([at, names]) => at.test(error.instancePath) && names.includes(name));
    // A union's own line says nothing that its parts do not.
    if (allowed || ['anyOf', 'oneOf'].includes(error.keyword)) continue;
    tell(file, pointer + error.instancePath, `${error.message}${name ? ` (${name})` : ''}`);
  }
}

// What the types cannot say.
function checkPanel(file, pointer, panel) {
  if (!KINDS.includes(panel.type)) tell(file, `${pointer}/type`, `no panel of kind ${panel.type}`);
  if (!panel.title) tell(file, `${pointer}/title`, 'a panel without a title');
  (panel.targets ?? []).forEach((target, number) => {
    if (!target.expr) tell(file, `${pointer}/targets/${number}/expr`, 'a query without an expression');
  });
  if (panel.type === 'row') return;
  if (KINDS.includes(panel.type) && !ofPanel(panel.type, 'Options')) tell(file, `${pointer}/type`, 'its types are not where they were');
  check(file, `${pointer}/options`, ofPanel(panel.type, 'Options'), panel.options);
  (panel.fieldConfig?.overrides ?? []).forEach(({ matcher, properties }, number) => {
    const at = `${pointer}/fieldConfig/overrides/${number}`;
    if (!MATCHERS.includes(matcher.id)) tell(file, `${at}/matcher/id`, `no matcher ${matcher.id}`);
    properties.forEach(({ id }, place) => {
      if (!SETTINGS.includes(id) && !id.startsWith('custom.')) tell(file, `${at}/properties/${place}/id`, `no setting ${id}`);
    });
  });
  const custom = panel.fieldConfig?.defaults.custom;
  if (custom) check(file, `${pointer}/fieldConfig/defaults/custom`, ofPanel(panel.type, 'FieldConfig'), custom);
}

const dashboard = validator(join(RAW, 'dashboard/x/types.gen.d.ts'), 'Dashboard');
for (const file of files) {
  const board = JSON.parse(readFileSync(file, 'utf8'));
  check(file, '', dashboard, board);
  if (Array.isArray(board.panels)) board.panels.forEach((panel, number) => checkPanel(file, `/panels/${number}`, panel));
}
process.exitCode = problems ? 1 : 0;
