// Validates objects of the Prometheus operator against its schemas.
//
//   node validate.mjs MODULES < OBJECTS
//
// OBJECTS is a JSON list. A line a problem; ends with 1 if there is one. A field that the schema does
// not know is one: the schemas pass over it, and so does the operator.
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const models = join(resolve(process.argv[2]), 'node_modules/@kubernetes-models/prometheus-operator');

// Routes below the first are any JSON to the schema, which cannot hold itself.
const ANY = /^\/spec\/route\/routes\//;

// A validator reads every field that it knows: what it left unread is in no schema.
function watched(value, path, unread) {
  if (value === null || typeof value !== 'object') return value;
  const inside = Object.fromEntries(
    Object.keys(value).map((key) => [key, watched(value[key], `${path}/${key}`, unread)]),
  );
  Object.keys(value).forEach((key) => unread.add(`${path}/${key}`));
  return new Proxy(value, {
    get(target, key) {
      unread.delete(`${path}/${String(key)}`);
      return key in inside ? inside[key] : target[key];
    },
  });
}

let wrong = 0;
for (const given of JSON.parse(readFileSync(0))) {
  const say = (text) => {
    wrong = 1;
    console.log(`${given.kind} ${given.metadata?.name}: ${text}`);
  };
  const [group, version] = given.apiVersion.split('/');
  const unread = new Set();
  try {
    const kinds = await import(pathToFileURL(join(models, group, version, 'index.js')));
    if (!kinds[given.kind]) throw new Error('no such kind');
    const model = new kinds[given.kind](given); // a copy
    model.spec = watched(given.spec, '/spec', unread);
    model.validate();
  } catch (error) {
    say(error.message);
  }
  unread.forEach((path) => ANY.test(path) || say(`${path} is not in the schema`));
}
process.exitCode = wrong;
