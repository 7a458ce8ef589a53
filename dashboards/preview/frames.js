// Turns what Prometheus answered into the frames that a panel of Grafana would be given: names by
// the legend, transformations, then the field configuration with its overrides.
import {
  FieldType, applyFieldOverrides, createTheme, displayNameOverrideProcessor, standardTransformers, standardTransformersRegistry,
  toDataFrame, transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

export const theme = createTheme({ colors: { mode: 'dark' } });
const asIs = (text) => text;
// Of the variables of a field, those that our dashboards use.
export const replaceVariables = (text, scoped) =>
  text.replace(/\$\{__field\.labels\.(\w+)\}/g, (_, name) => scoped?.__dataContext?.value.field.labels?.[name] ?? '');

// Some are there under two names.
const transformers = new Map(Object.values(standardTransformers).map((one) => [one.id, one]));
standardTransformersRegistry.setInit(() =>
  [...transformers.values()].map((one) => ({ id: one.id, name: one.name, transformation: () => one })),
);

// Prometheus writes infinities in its own way.
const number = (text) => Number(text.replace('Inf', 'Infinity'));

function legend(format, labels) {
  if (format === '__auto') return undefined;
  return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '') || undefined;
}

function seriesFrame(target, row, step) {
  const points = row.values ?? [row.value];
  const displayNameFromDS = legend(target.legendFormat, row.metric);
  return toDataFrame({
    refId: target.refId,
    name: displayNameFromDS,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        // Where points are further apart than this, a line has a gap.
        config: { interval: step * 1000 },
        values: points.map(([time]) => time * 1000),
      },
      {
        name: 'Value',
        type: FieldType.number,
        labels: row.metric,
        config: { displayNameFromDS },
        values: points.map(([, value]) => number(value)),
      },
    ],
  });
}

function tableFrame(target, rows, alone) {
  const labels = [...new Set(rows.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const points = rows.flatMap((row) => (row.values ?? [row.value]).map((point) => [row.metric, ...point]));
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([, time]) => time * 1000) },
      ...labels.map((name) => ({ name, type: FieldType.string, values: points.map(([metric]) => metric[name] ?? '') })),
      {
        name: alone ? 'Value' : `Value #${target.refId}`,
        type: FieldType.number,
        values: points.map(([, , value]) => number(value)),
      },
    ],
  });
}

// JSON has no minus infinity, where Grafana's thresholds begin.
const thresholds = (value) =>
  value && { ...value, steps: value.steps.map((step) => ({ ...step, value: step.value ?? -Infinity })) };

// Grafana's registry of field settings is not on npm. This one knows each by its path, which is
// all that defaults and overrides need.
function settings({ defaults }) {
  const setting = (id) => {
    const isCustom = id.startsWith('custom.');
    return {
      id,
      isCustom,
      path: isCustom ? id.slice('custom.'.length) : id,
      process: (value, context) => {
        if (id === 'thresholds') return thresholds(value);
        if (id === 'displayName') return displayNameOverrideProcessor(value, context, { expandTemplateVars: true });
        return value;
      },
      shouldApply: ({ type }) => !['min', 'max', 'decimals'].includes(id) || type === FieldType.number,
    };
  };
  const ids = Object.keys(defaults).filter((id) => id !== 'custom');
  const custom = Object.keys(defaults.custom ?? {}).map((id) => `custom.${id}`);
  return { getIfExists: setting, list: () => [...ids, ...custom].map(setting) };
}

export function fieldConfigOf(panel) {
  const { defaults = {}, overrides = [] } = panel.fieldConfig ?? {};
  return { defaults: { ...defaults, thresholds: thresholds(defaults.thresholds) }, overrides };
}

export async function framesOf(panel, answers, step) {
  const targets = (panel.targets ?? []).filter(({ refId }) => answers[refId]?.length);
  const raw = targets.flatMap((target) =>
    target.format === 'table'
      ? [tableFrame(target, answers[target.refId], panel.targets.length === 1)]
      : answers[target.refId].map((row) => seriesFrame(target, row, step)),
  );
  const transformations = panel.transformations ?? [];
  const unknown = transformations.find(({ id }) => !standardTransformersRegistry.getIfExists(id));
  if (unknown) throw new Error(`no transformation ${unknown.id}`);
  const data = await lastValueFrom(transformDataFrame(transformations, raw, { interpolate: asIs }));
  const fieldConfig = fieldConfigOf(panel);
  return applyFieldOverrides({
    data, fieldConfig, fieldConfigRegistry: settings(fieldConfig), theme, replaceVariables, timeZone: 'utc',
  });
}
