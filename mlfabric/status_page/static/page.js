// Keeps what the scheduler tells, and shows it.
import { Timeline, columns, line, matrix } from "./charts.js";

const KEPT_MS = 600_000, ROUNDS_SHOWN = 12, NOTES_SHOWN = 60, JUDGED = 50, AWAY_MS = 5_000;
const LONGER = 1.5, DROPS_MANY = 0.05;
const $ = (id) => document.getElementById(id);
const wholes = new Map();
const kept = { process: "", entries: [], state: null };
const KINDS = {
  settled: "done", committed: "done", served: "get", "": "open", dropped: "dropped",
};
const WORDS = { done: "in the model", get: "the model, or only the result, fetched", dropped: "dropped", void: "void or broken", open: "under way", waits: "waits", planned: "as planned" };
let paused = null, heardAt = 0, picked = "";

for (const [kind, words] of Object.entries(WORDS)) {
  const item = document.createElement("span"), colour = document.createElement("i");
  colour.className = kind;
  item.append(colour, words);
  $("key").append(item);
}
const timeline = new Timeline($("timeline"), (bar) => { $("bar").textContent = bar ? bar.words() : ""; });

// What comes: from the scheduler, or, in a report, with the page

const recorded = $("recorded");
if (recorded) {
  Object.assign(kept, JSON.parse(recorded.textContent));
  paused = kept.state.now;
  $("until").min = goesBack();
  $("pause").hidden = $("others").hidden = true;
  $("replay").hidden = false;
} else {
  const source = new EventSource("events");
  source.addEventListener("entries", (event) => {
    const news = JSON.parse(event.data);
    begin(news.process);
    kept.entries.push(...news.entries);
  });
  source.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    begin(state.process);
    kept.state = state;
    kept.entries = kept.entries.filter((entry) => time(entry) > state.now - KEPT_MS);
    heard();
    if (paused === null) show();
  });
  source.onerror = () => {
    const since = kept.state ? `; what is shown is of ${clock(kept.state.now)}` : "", ended = heardAt && Date.now() - heardAt > AWAY_MS;
    $("fabric").textContent = `no connection to the scheduler${ended ? ", whose fabric may have ended" : ""}: trying again${since}`;
    $("fabric").className = "away";
    document.body.classList.toggle("stale", Boolean(kept.state));
  };
}

function begin(process) {
  if (process !== kept.process) Object.assign(kept, { process, entries: [], state: null });
}

function time(entry) {
  return entry.at || entry.ended;
}

// What is shown

function heard() {
  const status = kept.state.status, here = status.members.filter((member) => member.state === "here").length;
  const what = recorded ? `recorded until ${new Date(kept.state.now).toLocaleString()}` : `${here} members here`;
  $("fabric").textContent = `${what}; mlfabric ${status.software_version}`;
  $("fabric").className = "";
  document.body.classList.remove("stale");
  heardAt = Date.now();
}

/** Return how many seconds before the present the first entry is, as a number below 0. */
function goesBack() {
  return Math.floor((kept.entries.reduce((first, entry) => Math.min(first, time(entry)), paused) - paused) / 1000);
}

function show() {
  if (!kept.state) return;
  const status = kept.state.status, now = paused === null ? kept.state.now : paused + Number($("until").value) * 1000;
  const span = Number($("span").value) * 1000;
  const models = modelsOf(status), here = new Set(status.models.map((each) => whole(each.name)));
  choices($("model"), [...models.keys()], (known) => here.has(known) ? known : `${known} (ended)`);
  if (here.size && !here.has($("model").value) && $("model").value !== picked) [$("model").value] = here;
  const model = models.get($("model").value), name = model ? whole(model.name) : "";
  const entries = present(kept.entries.filter((entry) => time(entry) <= now));
  const shown = entries.filter((entry) => entry.model && whole(entry.model) === name), levels = entries.filter((entry) => entry.kind === "level");
  const long = recorded ? now - time(kept.entries[0] || { at: now - span }) : span;
  const rounds = shown.filter((entry) => entry.kind === "round"), stays = staysOf(status, shown, entries.filter((entry) => entry.kind === "note"), name);
  const links = paused === null || !levels.length ? status.links : linksOf(levels.at(-1));
  $("members-title").textContent = `Members${paused === null ? "" : recorded ? ", as they were at the end" : ", as they are now"}`;
  showTimeline(status, shown, name, now, span, stays);
  showSummary(rounds, shown.filter((entry) => entry.kind === "update"), links);
  showMembers(status, name, models.size > 1, stays);
  showRounds(rounds, stays);
  showDelays(model ? shown.filter((entry) => entry.model === model.name) : [], boundOf(model, levels));
  showLead(model ? model.name : "", levels, now, long);
  showLinks(links);
  showPlans(levels, now, long);
  showAccuracy(entries.filter((entry) => entry.kind === "accuracy"), now, long);
  showNotes(entries.flatMap(noteOf));
}

/** Return the models that there are or were, by the names of the whole ones: their first parts, with their bounds. */
function modelsOf(status) {
  const found = new Map(), add = (name, tau_max) => { if (!found.has(whole(name))) found.set(whole(name), { name, tau_max }); };
  for (const model of status.models) wholes.set(model.name, model.whole || model.name);
  for (const model of status.models) add(model.name, model.tau_max);
  const former = kept.entries.filter((entry) => entry.kind === "level").reverse().flatMap((entry) => Object.entries(entry.models));
  for (const [name, one] of former) if (!wholes.has(name)) wholes.set(name, one.whole || name);
  for (const [name, one] of former) add(name, one.tau_max);
  for (const entry of kept.entries) if (entry.model) add(entry.model, 0);
  return found;
}

/** Return since when each worker of a model is there, and until when it was: for ever unless it is said to have left. */
function staysOf(status, shown, notes, name) {
  const left = new Set(status.members.filter((member) => member.state === "left").map((member) => member.name)), first = new Map();
  for (const entry of shown) {
    for (const worker of entry.kind === "round" ? [...entry.members, ...entry.receivers] : entry.worker ? [entry.worker] : []) {
      if (!first.has(worker)) first.set(worker, entry.began || entry.asked || time(entry));
    }
  }
  if (paused === null) for (const worker of status.workers) if (worker.model === name && !left.has(worker.name) && !first.has(worker.name)) first.set(worker.name, 0);
  const stays = new Map([...first].map(([worker, from]) => [worker, { from, to: Infinity }]));
  for (const note of notes) {
    const stay = stays.get(note.about);
    if (!stay) continue;
    if (note.here) stay.from = Math.min(stay.from || Infinity, note.at);
    if ("here" in note) stay.to = note.here ? Infinity : note.at;
  }
  return stays;
}

/** Leave out what is of models that have ended, where others of the same name have begun. */
function present(entries) {
  const begun = new Map(entries.flatMap((entry, at) => (entry.begins || []).map((name) => [name, at])));
  return begun.size ? entries.filter((entry, at) => !(begun.get(entry.model) > at)) : entries;
}

/** Return the name of the model that this is a part of, if it is: one that is cut over several servers has a name for each. */
function whole(name) {
  return wholes.get(name) || name;
}

function choices(select, names, words = (name) => name || "all") {
  const had = [...select.options].map((option) => option.value);
  if (had.length === names.length && had.every((name, at) => name === names[at] && select.options[at].text === words(name))) return;
  const value = select.value;
  select.replaceChildren(...names.map((name) => new Option(words(name), name)));
  if (names.includes(value)) select.value = value;
}

function showTimeline(status, ended, name, now, span, stays) {
  const still = paused === null ? kept.state.open.filter((entry) => whole(entry.model) === name) : [];
  const bars = [...ended.filter((entry) => entry.ended >= now - span), ...still].flatMap((entry) => barsOf(entry, now));
  const here = [...stays].filter(([, stay]) => stay.to >= now - span).map(([worker]) => worker);
  timeline.show([...new Set([...here, ...bars.map((bar) => bar.row)])].sort(byNumber), bars, now - span, now, paused === null ? "now" : clock(now));
}

function barsOf(entry, now) {
  const kind = KINDS[entry.outcome] || "void", ended = entry.ended || now;
  if (entry.kind === "round") {
    return [...entry.members, ...entry.receivers].map((worker) => ({
      row: worker, from: entry.began, to: entry.arrived[worker] || ended, planned: entry.planned,
      kind: kind === "done" && entry.receivers.includes(worker) ? "get" : kind,
      key: `${entry.id} ${worker}`, words: () => aboutRound(entry, worker),
    }));
  }
  if (!entry.planned && !entry.ended) return [];
  const from = entry.planned ? entry.planned[0] : entry.ended, to = Math.max(from, entry.received || ended);
  return [{ row: entry.worker, from, to, kind, planned: entry.planned, waits: entry.asked && Math.min(entry.asked, from), key: entry.id, words: () => aboutTransfer(entry, from, to) }];
}

const seconds = (ms) => `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1, hourCycle: "h23" });
const clock = (ms) => TIME.format(ms);

function aboutRound(entry, worker) {
  const took = entry.ended ? `took ${seconds(entry.ended - entry.began)}` : "is under way";
  const planned = entry.planned ? `, planned ${seconds(entry.planned[1] - entry.planned[0])}` : "";
  const at = entry.arrived[worker], own = at ? `; ${worker} had it after ${seconds(at - entry.began)}` : "";
  const delay = worker in entry.delays ? `; its gradient is ${entry.delays[worker]} rounds late` : "";
  const role = entry.receivers.includes(worker) ? `; ${worker} only gets the result` : "";
  return `${clock(entry.began)} ${entry.id}, version ${entry.version}: ${took}${planned}${own}${delay}${role}; ${entry.outcome || "open"}${entry.cause ? `: ${entry.cause}` : ""}; ${entry.reason}`;
}

function aboutTransfer(entry, from, to) {
  const what = entry.kind === "get" ? "gets the model" : "update", planned = entry.planned ? `, planned ${seconds(entry.planned[1] - entry.planned[0])}` : "";
  const waited = entry.asked ? `, waited ${seconds(Math.max(0, from - entry.asked))}` : "", took = entry.ended ? `took ${seconds(to - from)}` : "is under way";
  const fate = entry.outcome === "committed" ? `in version ${entry.version}, delay ${entry.delay}` : entry.outcome === "dropped" ? `dropped: ${entry.reason || entry.cause}` : entry.outcome || "open";
  return `${clock(from)} ${entry.id} of ${entry.worker}, ${what}: ${took}${planned}${waited}; ${fate}${entry.sum ? `; in ${entry.sum}` : ""}${entry.reason && entry.outcome !== "dropped" ? `; ${entry.reason}` : ""}`;
}

/** Show items as rows, one for each key; rows that stay keep the focus, and what was not changed is left alone. */
function rows(body, items, key, cells) {
  const had = new Map([...body.children].map((row) => [row.dataset.key, row])), heads = [...body.parentNode.tHead.rows[0].cells].map((head) => head.textContent);
  const made = items.map((item) => {
    const row = had.get(key(item)) || document.createElement("tr");
    row.dataset.key = key(item);
    cells(item).forEach((content, at) => {
      const cell = row.children[at] || row.appendChild(document.createElement("td")), given = [content].flat();
      const [text, kind] = given;
      cell.dataset.label = heads[at];
      if (text instanceof Node) { if (cell.firstChild !== text) cell.replaceChildren(text); return; }
      if (cell.textContent !== String(text)) cell.textContent = text;
      if (cell.className !== (kind || "")) cell.className = kind || "";
    });
    return row;
  });
  if (made.length !== body.children.length || made.some((row, at) => row !== body.children[at])) body.replaceChildren(...made);
}

/** Show who is here; of the workers those of one model, and who left it. */
function showMembers(status, name, several, stays) {
  const of = new Map(status.workers.map((worker) => [worker.name, worker]));
  const concerned = (member) => {
    const worker = of.get(member.name);
    return !worker || (worker.model === name ? member.state !== "left" || member.activity || stays.has(member.name) : !several && member.state !== "left");
  };
  rows($("members"), status.members.filter(concerned).sort((one, other) => byNumber(one.name, other.name)), (member) => member.name, (member) => {
    const worker = of.get(member.name), count = (value) => worker ? value : "", lost = member.state === "left" && member.activity;
    return [
      member.name, lost ? ["lost", "lost"] : [member.state, member.state],
      worker && worker.warning ? [worker.warning, "words warning"] : [member.activity || member.role, "words"],
      count(worker && worker.committed), worker && worker.dropped ? [`${worker.dropped} (${(100 * worker.dropped_share).toFixed(1)} %): ${Object.keys(worker.dropped_by_cause).join("; ")}`, "words"] : count(0),
      member.host,
    ];
  });
}

/** Say in a few words what holds a job up. */
function showSummary(rounds, updates, links) {
  const said = [], last = rounds.filter((round) => round.outcome === "settled").slice(-JUDGED);
  const [link, often] = mostOften(last.map((round) => (/held up by ([^,]*)/.exec(round.reason) || [])[1]));
  if (often * 2 > last.length) said.push(`${link} holds up ${often} of the last ${last.length} rounds`);
  const timed = last.filter((round) => round.planned), sum = (of) => timed.reduce((all, round) => all + of(round), 0);
  const took = sum((round) => round.ended - round.began), planned = sum((round) => round.planned[1] - round.planned[0]);
  if (timed.length) said.push(`Rounds take ${seconds(took / timed.length)}${took > LONGER * planned ? ", much longer than" : ","} planned ${seconds(planned / timed.length)}`);
  const by = new Map(updates.map((update) => [update.worker, []]));
  for (const update of updates) by.get(update.worker).push(update);
  const dropped = (worker) => by.get(worker).filter((update) => update.outcome === "dropped");
  const share = (worker) => dropped(worker).length / by.get(worker).length, [worst] = [...by.keys()].sort((one, other) => share(other) - share(one));
  if (worst && share(worst) > DROPS_MANY) said.push(`${(100 * share(worst)).toFixed(0)} % of ${worst}'s updates were dropped, the last one as ${dropped(worst).at(-1).reason || dropped(worst).at(-1).cause}`);
  const usual = usualRates(links), slow = links.filter((each) => isSlow(each, usual)).sort((one, other) => one.estimate_bps - other.estimate_bps);
  if (slow.length) said.push(`Slow: ${slow.slice(0, 3).map((each) => `${each.host} ${each.up ? "up" : "down"}, ${rate(each.estimate_bps)}`).join("; ")}${slow.length > 3 ? `; and ${slow.length - 3} more links` : ""}`);
  $("summary").textContent = said.length ? `${said.join(". ")}.` : "";
}

function mostOften(words) {
  const counts = new Map();
  for (const one of words) if (one) counts.set(one, (counts.get(one) || 0) + 1);
  return [...counts].sort(([, one], [, other]) => other - one)[0] || ["", 0];
}

function showRounds(rounds, stays) {
  $("rounds-section").hidden = !rounds.length;
  rows($("rounds"), rounds.slice(-ROUNDS_SHOWN).reverse(), (round) => round.id, (round) => {
    const there = [...stays].filter(([, stay]) => stay.from <= round.began && round.ended <= stay.to);
    const out = there.map(([worker]) => worker).filter((worker) => !round.members.includes(worker)).sort(byNumber);
    const planned = round.planned ? seconds(round.planned[1] - round.planned[0]) : "", took = round.ended - round.began;
    return [
      round.version, [seconds(took), round.planned && took > LONGER * (round.planned[1] - round.planned[0]) ? "warning" : ""], planned, round.members.length, out.join(", "),
      round.outcome === "void" ? [`void: ${round.cause}`, "words warning"] : [round.reason, "words"],
    ];
  });
}

/** Return how late a gradient of a model may be; 0 if there is no bound. */
function boundOf(model, levels) {
  const level = paused !== null && model && levels.findLast((each) => model.name in each.models);
  return level ? level.models[model.name].tau_max : model ? model.tau_max : 0;
}

function showDelays(shown, bound) {
  const counts = new Map(), add = (delay) => counts.set(delay, (counts.get(delay) || 0) + 1);
  for (const entry of shown) {
    if (entry.kind === "update" && entry.outcome === "committed") add(entry.delay);
    if (entry.kind === "round" && entry.outcome === "settled") Object.values(entry.delays).forEach(add);
  }
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  columns($("delays"), counts, bound);
  $("delays-text").textContent = total ? `${total} gradients${recorded ? "" : " of the last 10 minutes"}${bound ? `; none may be later than ${bound}` : ""}` : "no gradient yet";
}

function showLead(name, levels, now, span) {
  const began = Math.max(0, ...kept.entries.filter((entry) => (entry.begins || []).includes(name)).map(time).filter((at) => at <= now));
  const having = levels.filter((level) => time(level) >= began && name in level.models && "replica_lead" in level.models[name]), last = having.at(-1);
  $("lead-section").hidden = !last;
  if (!last) return;
  const model = last.models[name], inUpdates = model.divergence_max === null;
  const value = inUpdates ? "replica_lead" : "divergence", most = inUpdates ? "replica_lead_max" : "divergence_max";
  line($("lead"), having.map((level) => [level.at, level.models[name][value]]), now - span, now, model[most]);
  const bound = (found) => found === null ? "" : `, ${Number(found.toPrecision(3))} at most`;
  $("lead-text").textContent = `${model.replica_lead} updates${bound(model.replica_lead_max)}; l2 distance at most ${Number(model.divergence.toPrecision(3))}${bound(model.divergence_max)}`;
}

function linksOf(level) {
  return Object.entries(level.links).flatMap(([host, both]) => both.map((estimate_bps, at) => ({ host, up: at === 0, estimate_bps })).filter((link) => link.estimate_bps !== null));
}

function showLinks(links) {
  const by = new Map();
  for (const link of links) by.set(link.host, { ...by.get(link.host), host: link.host, [link.up ? "up" : "down"]: link });
  const usual = usualRates(links);
  const cell = (link) => {
    if (!link) return "";
    const slow = isSlow(link, usual), unseen = link.nominal_bps ? " (declared)" : " (not measured)", age = link.age_s === undefined ? "" : link.age_s === null ? unseen : ` (${link.age_s.toFixed(0)} s ago)`;
    return [`${rate(link.estimate_bps)}${slow ? " slow" : ""}${age}`, slow ? "warning" : ""];
  };
  rows($("links"), [...by.values()].sort((one, other) => byNumber(one.host, other.host)), (host) => host.host, (host) => [host.host, cell(host.up), cell(host.down)]);
  const hosts = [...by.keys()].sort(byNumber), between = (from, to) => {
    const ways = [by.get(from).up, by.get(to).down].filter(Boolean).map((link) => link.estimate_bps);
    return ways.length ? Math.min(...ways) : 0;
  };
  $("pairs").hidden = hosts.length < 2;
  matrix($("matrix"), hosts, between, (bps) => bps < Math.min(usual[true], usual[false]) / 2, (from, to) => `${from} to ${to}: ${rate(between(from, to))}`);
}

/** Return by direction the middle rate of the links whose rate is known, the higher one of two. */
function usualRates(links) {
  const known = links.filter((link) => link.nominal_bps !== 0 || link.age_s !== null);
  return Object.fromEntries([true, false].map((up) => {
    const rates = known.filter((link) => link.up === up).map((link) => link.estimate_bps).sort((one, other) => one - other);
    return [up, rates[Math.floor(rates.length / 2)] || 1];
  }));
}

function isSlow(link, usual) {
  return link.estimate_bps < usual[link.up] / 2;
}

function rate(bps) {
  const at = Math.max(0, Math.min(3, Math.floor(Math.log10(Math.max(1, bps)) / 3)));
  return `${(bps / 1000 ** at).toPrecision(3)} ${["", "k", "M", "G"][at]}bit/s`;
}

function showPlans(levels, now, span) {
  const points = levels.slice(1).map((level, at) => [level.at, Math.max(0, level.plans - levels[at].plans) * 1000 / Math.max(1, level.at - levels[at].at)]);
  line($("plans"), points, now - span, now, 0);
  const last = levels.at(-1);
  $("plans-text").textContent = last ? `${last.plans} plans, ${last.mean_plan_ms.toFixed(2)} ms each on average` : "";
}

function showAccuracy(found, now, span) {
  $("accuracy-section").hidden = !found.length;
  if (!found.length) return;
  line($("accuracy"), found.map((entry) => [entry.at, entry.value]), now - span, now, 0);
  $("accuracy-text").textContent = `${found.at(-1).value.toFixed(4)}`;
}

/** Return what is worth to be told of an entry: a note itself, and what was dropped or given up. */
function noteOf(entry) {
  if (entry.kind === "note") return [entry];
  if (entry.outcome === "dropped") return [{ at: entry.ended, about: entry.worker, text: `${entry.id} is dropped: ${entry.reason || entry.cause}` }];
  return entry.outcome === "void" ? [{ at: entry.ended, about: entry.model, text: `${entry.id} is void: ${entry.cause}`, warning: true }] : [];
}

function showNotes(notes) {
  choices($("about"), ["", ...new Set(notes.map((note) => note.about))].sort(byNumber));
  const about = $("about").value, last = notes.filter((note) => !about || note.about === about).slice(-NOTES_SHOWN).reverse();
  const key = last.map((note) => note.at + note.about + note.text).join();
  if ($("notes").dataset.key === key) return;
  $("notes").dataset.key = key;
  $("notes").replaceChildren(...last.map((note) => {
    const item = document.createElement("li"), who = document.createElement("b");
    who.textContent = note.about;
    item.append(`${clock(note.at)} `, who, ` ${note.text}`);
    item.className = note.warning ? "warning" : "";
    return item;
  }));
}

function byNumber(one, other) {
  return one.localeCompare(other, undefined, { numeric: true });
}

// What people do

$("pause").addEventListener("click", () => {
  paused = paused === null && kept.state ? kept.state.now : null;
  $("pause").textContent = paused === null ? "pause" : "go on";
  $("pause").setAttribute("aria-pressed", String(paused !== null));
  $("replay").hidden = paused === null;
  $("until").min = paused === null ? 0 : goesBack();
  $("until").value = 0;
  replayed();
});
$("until").addEventListener("input", replayed);
$("model").addEventListener("change", () => { picked = $("model").value; });
for (const id of ["model", "span", "about"]) $(id).addEventListener("change", show);
window.addEventListener("resize", show);
$("pairs").addEventListener("toggle", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

function replayed() {
  if (paused !== null) $("until-text").textContent = clock(paused + Number($("until").value) * 1000);
  show();
}

if (recorded) {
  heard();
  replayed();
}
