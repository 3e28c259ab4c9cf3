'use strict';
// What the daemon says at /status, in words. Kafka stands for the sink: see show. Everything is put in as text, never as HTML: topics and errors are others' words.
const words = {
  starting: ['wait', 'Starting', 'Connecting to Kafka, then to Postgres.'],
  waiting_for_slot: ['wait', 'Standing by', 'Another instance has the slot. This one takes over as soon as it is free.'],
  streaming: ['ok', 'Streaming', 'Events go from Postgres to Kafka as they are committed.'],
  backpressured: ['ok', 'Streaming at Kafka’s pace', 'The window is full: Postgres has more than Kafka takes at present.'],
  waiting_for_topic: ['wait', 'Waiting for a topic', 'Kafka does not have the topic of the next event. Create it; delivery goes on by itself.'],
  waiting_for_standby: ['wait', 'Waiting for a standby', 'Postgres holds events back until its standbys have them.'],
  waiting_for_postgres: ['wait', 'Waiting for Postgres', 'Postgres decodes a large transaction and sends nothing meanwhile.'],
  waiting_for_sink: ['wait', 'Waiting for Kafka', 'Kafka has not acknowledged the oldest event. Delivery goes on by itself when it does.'],
  waiting_for_position_topic: ['wait', 'Waiting for the position topic', 'Without it a crash would repeat events. The reason says what to do; delivery goes on by itself.'],
  reconnecting: ['wait', 'Reconnecting', 'The connection was lost. It is tried again until it works; nothing is lost meanwhile.'],
  parked: ['wait', 'Parked', 'Kafka takes nothing. Postgres keeps the WAL, and delivery goes on by itself when Kafka is back.'],
  draining: ['wait', 'Stopping', 'Waiting for what is in flight, then leaving.'],
  failed: ['bad', 'Failed', 'Nothing is delivered or confirmed until a person has decided.'],
};
const every = 2000, historyEvery = 10000, shownTopics = 20;
const el = (id) => document.getElementById(id);
const text = (id, s, mark) => { el(id).textContent = s; el(id).classList.toggle('warn', mark === 'warn'); el(id).classList.toggle('alarm', mark === 'alarm'); };
const count = (n) => Math.round(n).toLocaleString('en');
const time = (t) => { const d = new Date(t); return d.toDateString() === new Date().toDateString() ? d.toLocaleTimeString() : d.toLocaleString(); };

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + ' ' + units[i];
}

function duration(s) {
  if (s < 1) return Math.round(s * 1000) + ' ms';
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + Math.floor(s % 60) + ' s';
  if (s < 86400) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor(s % 86400 / 3600) + ' h';
}

const perSecond = (r) => (r === undefined || r === null ? '–' : r > 0 && r < 10 ? r.toFixed(1) : count(r)) + '/s';

// before is the answer before this one; past is the last answer of /history, and when it came.
let before = null;
let past = { at: 0, samples: [], every_seconds: 10 };

function rateOf(now, then, seconds) {
  return then === undefined || now < then ? undefined : (now - then) / seconds; // smaller: the daemon was started again
}

// draw fills a tile with one value of the history and the value of now. Where a value is not known the curve has a gap.
function draw(name, values, now, scale, words) {
  const shift = (Date.now() - past.at) / 1000;
  const points = past.samples.map((s) => ({ age: s.age_seconds + shift, v: values(s) })).concat({ age: 0, v: now });
  const known = points.filter((p) => p.v !== null && p.v !== undefined), span = Math.max(60, known.length ? known[0].age : 0);
  const most = Math.max(scale, ...known.map((p) => p.v));
  const x = (p) => (240 * (1 - p.age / span)).toFixed(1), y = (p) => (58 - 54 * p.v / most).toFixed(1);
  let line = '', area = '', from = null;
  points.forEach((p, i) => {
    const last = points[i - 1];
    if (!known.includes(p)) { if (from) area += 'L' + x(last) + ' 60Z'; from = null; return; }
    if (from && last.age - p.age > 3 * past.every_seconds) { area += 'L' + x(last) + ' 60Z'; from = null; }
    line += (from ? 'L' : 'M') + x(p) + ' ' + y(p);
    area += (from ? 'L' : 'M' + x(p) + ' 60L') + x(p) + ' ' + y(p);
    from = p;
  });
  if (from) area += 'L' + x(from) + ' 60Z';
  el(name + 'line').setAttribute('d', line);
  el(name + 'area').setAttribute('d', area);
  const whole = span >= 3590 ? 'the last hour' : span > 60 ? 'the last ' + duration(span) : 'the last minute';
  text(name + 'scale', known.length > 1 ? 'at most ' + words(Math.max(...known.map((p) => p.v))) + ' in ' + whole : '');
}

function add(parent, tag, s, cls) {
  const e = document.createElement(tag);
  if (s !== undefined) e.textContent = s;
  if (cls) e.className = cls;
  parent.append(e);
  return e;
}

function showState(level, title, sentence, reason) {
  el('box').dataset.level = level;
  if (el('state').textContent !== title) el('state').textContent = title; // not again and again for who has it read aloud
  if (el('words').textContent !== sentence) el('words').textContent = sentence;
  el('reason').textContent = reason || '';
  el('reason').hidden = !reason;
  document.title = title + ' · outboxcdc';
}

function showTroubles(all) {
  const list = el('troubles');
  list.replaceChildren();
  for (const t of all.slice().reverse()) {
    const li = add(list, 'li');
    const times = t.count > 1 ? ', ' + count(t.count) + ' times since ' + time(t.first) : '';
    add(li, 'span', time(t.last) + ' · ' + (words[t.state] || [0, t.state])[1] + times, 'small');
    add(li, 'code', t.error);
  }
  if (!all.length) add(list, 'li', 'None since this process started.', 'small');
}

function showStandbys(all) {
  el('standbys').hidden = !all.length;
  const body = el('standbyrows');
  body.replaceChildren();
  for (const s of all) {
    const tr = add(body, 'tr');
    const host = add(tr, 'td', s.host);
    add(host, 'p', 'since ' + time(s.since) + ': ' + s.text, 'small');
    if (s.leftover) add(add(host, 'p', 'remedy: ', 'small'), 'code', 'outboxcdc standby clean --host ' + s.host);
    add(tr, 'td', s.state.replace('_', ' '), s.state === 'ready' || s.state === 'primary' ? '' : s.state === 'other_primary' ? 'alarm' : 'warn');
    add(tr, 'td', s.lag_bytes === undefined ? '–' : bytes(s.lag_bytes), 'n');
  }
}

function showTopics(topics, then, seconds) {
  const body = el('topics');
  body.replaceChildren();
  const most = topics.slice().sort((a, b) => b.events_delivered - a.events_delivered);
  for (const t of most.slice(0, shownTopics)) {
    const tr = add(body, 'tr');
    add(tr, 'td', t.topic);
    add(tr, 'td', count(t.events_delivered), 'n');
    add(tr, 'td', perSecond(then && rateOf(t.events_delivered, then.get(t.topic) || 0, seconds)), 'n');
  }
  text('more', !topics.length ? 'Nothing delivered since this process started.' : topics.length > shownTopics ? 'and ' + (topics.length - shownTopics) + ' more' : '');
}

function show(s, at) {
  let [level, title, sentence] = words[s.state] || ['wait', s.state, ''];
  if (s.state === 'waiting_for_topic' && !(s.waiting_for_topics || []).length) sentence = 'Kafka has not answered yet whether it has the topic of the next event.';
  const answers = s.state !== 'streaming' || s.sink === 'ok', named = (t) => t.replaceAll('Kafka', s.delivers_to);
  showState(answers ? level : 'wait', named(title), named(answers ? sentence : 'Kafka does not answer at present.'), s.reason);
  text('sinkname', s.delivers_to.replace('the ', ''));
  text('since', 'since ' + time(s.since));
  text('slot', 'slot ' + s.slot);
  const flows = s.state === 'streaming' || s.state === 'backpressured';
  const idle = s.sink === 'no session', waits = s.oldest_unacknowledged_commit;
  const lag = waits || flows ? s.lag_seconds : undefined; // it also grows while it is not known whether something waits
  text('lag', lag === undefined ? 'not known' : lag === 0 ? 'nothing waits' : duration(lag), lag > 60 ? 'warn' : '');
  text('lagbytes', bytes(s.lag_bytes) + ' of WAL not confirmed');
  const seconds = before ? (at - before.at) / 1000 : 0;
  const rate = before ? rateOf(s.events_delivered, before.delivered, seconds) : (past.samples.at(-1) || {}).events_per_second;
  text('rate', perSecond(rate));
  text('total', count(s.events_delivered) + ' events since this process started');
  draw('lag', (p) => p.lag_seconds, lag, 1, duration);
  draw('rate', (p) => p.events_per_second, rate, 1, perSecond);
  text('inflight', idle ? '–' : count(s.in_flight_events));
  text('inflightbytes', !idle ? bytes(s.in_flight_bytes) + ', ' + count(s.unconfirmed_transactions) + ' transactions' :
    waits ? 'events wait in Postgres, the oldest committed ' + time(waits) : 'no session');
  const status = s.slot_wal_status || 'not known yet';
  const mark = status === 'lost' ? 'alarm' : status === 'unreserved' ? 'warn' : '';
  text('wal', s.slot_wal_status ? bytes(s.slot_retained_wal_bytes) : '–', mark);
  const left = s.slot_safe_wal_bytes;
  const room = !s.slot_wal_status || status === 'lost' ? '' : left === undefined ? '; no limit but the disk' : '; ' + bytes(Math.max(left, 0)) + ' more may be written';
  text('walstatus', 'status ' + status + room, mark);
  text('sink', s.sink === 'ok' ? 'answers' : idle && s.state !== 'parked' ? 'not connected' : 'fails', s.sink === 'ok' || idle && s.state !== 'parked' ? '' : 'warn');
  text('sinkwhy', s.waiting_for_topics && s.waiting_for_topics.length ? 'looking for ' + s.waiting_for_topics.join(', ') : s.sink === 'ok' || idle ? '' : s.sink);
  text('delivery', s.delivery === 'deduplicated' ? 'no repeats' : 'may repeat', '');
  text('deliverywhy', s.delivery === 'deduplicated' ? 'deduplicated' : 'at least once');
  text('confirmed', s.confirmed_lsn);
  text('received', 'confirmed; received ' + s.received_lsn);
  el('held').hidden = !s.held;
  if (s.held) text('heldkeys', count(s.held.keys) + ' keys, ' + count(s.held.letters) + ' events wait in the dead-letter topic, the oldest for ' + duration(s.held.oldest_seconds), 'warn');
  showStandbys(s.standbys || []);
  showTroubles(s.troubles);
  showTopics(s.topics, before && before.topics, seconds);
  text('version', 'outboxcdc ' + s.version);
  text('seen', 'as of ' + new Date(at).toLocaleTimeString());
  before = { at, delivered: s.events_delivered, topics: new Map(s.topics.map((t) => [t.topic, t.events_delivered])) };
}

let answered = null;

async function ask(path) {
  const res = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(5000) });
  if (!res.ok) throw new Error(path + ' ' + res.status);
  return res.json();
}

async function poll() {
  // One that was opened in the background should not be empty either.
  if (!document.hidden || !answered) {
    try {
      const s = await ask('status');
      if (Date.now() - past.at >= historyEvery) past = { ...await ask('history'), at: Date.now() };
      answered = Date.now();
      show(s, answered);
    } catch (err) {
      showState('bad', 'No answer', 'The daemon does not answer this page' + (answered ? ' since ' + time(answered) : '') + '. What is below is as it was then.', String(err.message || err));
    }
  }
  setTimeout(poll, every);
}
document.addEventListener('visibilitychange', () => { if (!document.hidden) before = null; });
poll();
