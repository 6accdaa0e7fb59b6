// The page of an inference port. All that models say is text here: textContent, never HTML.
const POLL_MS = 500, MODELS_MS = 2000, KEPT = 256, WINDOW_S = 3, COLUMN_PX = 9;
const MOST_SHOWN = 200_000, MOST_ZEROS = 1024, MANY = 100;
const WHY = {
  full: "full", delay: "max_batch_delay was over", idle: "a worker was free",
  adaptive: "more was not worth the wait",
};
const MODES = {
  text: ["text", "file"], json: ["json", "file"], tensor: ["json", "file"], image: ["file"],
  bytes: ["file", "text"], form: ["form", "json"],
};
const LABELS = { text: "Text", json: "JSON", file: "File", form: "Form" };
const IMAGES = [["89504e47", "image/png"], ["ffd8ff", "image/jpeg"], ["47494638", "image/gif"]];

const $ = (selector, root = document) => root.querySelector(selector);
const say = (selector, text, root) => { $(selector, root).textContent = text; };

function make(tag, text = "", properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), { textContent: text, ...properties });
  made.append(...children);
  return made;
}

const few = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const count = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const ms = (value) => (value < 1000 ? `${few(value)} ms` : `${few(value / 1000)} s`);
const sum = (values) => values.reduce((all, one) => all + one, 0);
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

// --- batches

let batches = [], after = 0, told = null;

function describe(batch) {
  return `${batch.model}: ${batch.size} of ${batch.full_size}, ${WHY[batch.closed_by]}; ` +
    `waited ${ms(batch.wait_ms)}, in the handler ${ms(batch.handler_ms)}`;
}

function column(batch, longest_ms) {
  const bar = (share, className = "") => {
    const made = make("i", "", { className });
    made.style.height = `${Math.min(100, 100 * share)}%`;
    return made;
  };
  const times = [batch.wait_ms, batch.handler_ms].map((value) => bar(value / longest_ms));
  return make("div", "", {
    className: batch.closed_by,
    onmouseenter: () => { told = batch; say("#told", describe(batch)); },
    onmouseleave: () => { told = null; },
  }, [bar(batch.size / batch.full_size, "size"), make("span", "", { className: "times" }, times)]);
}

function showBatches(now_s) {
  const shown = batches.slice(-Math.floor($("#strip").clientWidth / COLUMN_PX));
  if (!shown.length) return;
  const longest_ms = Math.max(...shown.map((one) => one.wait_ms + one.handler_ms), 0.001);
  $("#strip").replaceChildren(...shown.map((one) => column(one, longest_ms)));
  if (!told) say("#told", `Last: ${describe(shown.at(-1))}`);
  $("#strip").ariaLabel = `The last ${shown.length} batches. Last: ${describe(shown.at(-1))}`;
  $("#strip").dataset.longest = `time, at most ${ms(longest_ms)}`;
  $("#table").replaceChildren(...shown.slice(-10).reverse().map((one) => {
    const cells = [one.model, `${one.size} of ${one.full_size}`, WHY[one.closed_by],
      ms(one.wait_ms), ms(one.handler_ms)];
    return make("tr", "", {}, cells.map((text) => make("td", text)));
  }));
  const recent = batches.filter((one) => one.at_s > now_s - WINDOW_S);
  const span_s = recent.length < KEPT ? WINDOW_S : now_s - recent[0].at_s;
  const rows = sum(recent.map((one) => one.size));
  say("#rows-rate", count(rows / span_s));
  say("#batch-rate", count(recent.length / span_s));
  say("#mean-size", recent.length ? few(rows / recent.length) : "–");
  say("#median-wait", recent.length ? ms(median(recent.map((one) => one.wait_ms))) : "–");
  say("#median-handler", recent.length ? ms(median(recent.map((one) => one.handler_ms))) : "–");
}

async function ask(path) {
  const response = await fetch(path);
  const document = await response.json();
  if (!response.ok) throw new Error(document.message ?? response.statusText);
  return document;
}

async function pollBatches() {
  const found = await ask(`page/batches?after=${after}`);
  batches = [...batches, ...found.batches].slice(-KEPT);
  after = batches.at(-1)?.at_s ?? 0;
  if (found.processes > 1) {
    say("#share", `of one ingress of ${found.processes}: each shows its own share`);
  }
  showBatches(found.now_s);
}

// --- models

const cards = new Map();

function exampleOf(model) {
  if ("example" in model) return model.example;
  const shape = model.inputs?.[0]?.shape;
  return shape ? zeros(shape.slice(1)) : sample(model.input?.schema);
}

const zeros = ([first, ...rest]) => (first === undefined ? 0
  : Array.from({ length: Math.max(1, Math.min(first, MOST_ZEROS)) }, () => zeros(rest)));

function sample(schema, levels = 5) {
  const one = schema?.anyOf?.[0] ?? schema ?? {};
  const known = one.default ?? one.const ?? one.enum?.[0];
  if (known !== undefined || !levels) return known ?? null;
  const inner = ([name, value]) => [name, sample(value, levels - 1)];
  return {
    object: () => Object.fromEntries(Object.entries(one.properties ?? {}).map(inner)),
    array: () => (one.items?.type ? [sample(one.items, levels - 1)] : [1, 2, 3]),
    string: () => "text", boolean: () => true, integer: () => 1, number: () => 1,
  }[one.type]?.() ?? null;
}

const isFile = (schema) => schema?.format === "binary" || schema?.contentEncoding === "base64";
const quote = (text) => (/^[\w@:.,/=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

class Card {
  constructor(model) {
    this.root = $("#model").content.cloneNode(true).firstElementChild;
    this.url = new URL(`predictions/${encodeURIComponent(model.name)}`, location.href).href;
    this.form = $("form", this.root);
    this.text = $("textarea", this.root);
    this.file = $("input[type=file]", this.root);
    say("h3", model.name, this.root);
    this.form.onsubmit = (event) => { event.preventDefault(); this.run(() => this.send()); };
    $(".many", this.root).onclick = () => this.run(() => this.sendMany());
    $(".copy", this.root).onclick = (event) => this.copy(event.target);
    this.form.oninput = () => this.showCommand();
    this.file.onchange = () => this.showChosen();
    this.show(model);
  }

  show(model) {
    const text = JSON.stringify(model);
    if (text === this.shown) return;
    const input = JSON.stringify([model.input, model.inputs, model.example, model.version]);
    Object.assign(this, { shown: text, model, kind: model.input?.kind ?? "" });
    const ready = model.workers.filter((one) => one.state === "READY");
    const others = model.workers.map((one) => one.state.toLowerCase()).filter((one) => one !== "ready");
    const states = [ready.length ? `${ready.length} ready` : "", ...new Set(others)].filter(Boolean);
    say(".version", model.version, this.root);
    const types = model.input && `${model.input.type || this.kind} → ${model.output?.type || "any"}`;
    say(".kind", types || "TorchServe handler", this.root);
    say(".state", states.join(", ") || "no worker", this.root);
    $(".state", this.root).classList.toggle("bad", !ready.length);
    say(".about", model.summary || "", this.root);
    this.showFacts(model, ready);
    if (input !== this.input) this.offer(input);
  }

  showFacts(model, ready) {
    const tensors = (list) => list.map((one) => `${one.name} ${one.datatype} [${one.shape}]`).join(", ");
    const devices = [...new Set(ready.map((one) => one.device))].join(", ");
    const facts = {
      Input: tensors(model.inputs ?? []) || (model.input ? `${model.input.type} (${this.kind})` : ""),
      Output: tensors(model.outputs ?? []) || model.output?.type,
      Batch: `up to ${model.batch_size}, after ${model.max_batch_delay_ms} ms at the latest, ${model.batch_policy}`,
      Workers: ready.length ? `${ready.length} on ${devices}` : "none is ready",
      Versions: model.versions.length > 1 && model.versions.join(", "),
    };
    $(".facts", this.root).replaceChildren(...Object.entries(facts).flatMap(
      ([name, value]) => (value ? [make("dt", name), make("dd", value)] : [])));
  }

  // Shows the ways in which this kind of input can be sent, and fills in the example.
  offer(input) {
    this.input = input;
    const modes = MODES[this.kind] ?? ["json", "text", "file"];
    $(".modes", this.root).replaceChildren(make("legend", "Try it with"), ...modes.map((mode) => {
      const radio = make("input", "", {
        type: "radio", checked: mode === modes[0], onchange: () => this.choose(mode),
        name: `mode-${this.model.name}`,
      });
      return make("label", "", {}, [radio, ` ${LABELS[mode]}`]);
    }));
    const fields = Object.entries(this.model.input?.schema?.properties ?? {}).map(([name, schema]) => {
      const example = this.model.example?.[name] ?? sample(schema) ?? "";
      const value = typeof example === "string" ? example : JSON.stringify(example);
      const field = make("input", "", isFile(schema) ? { name, type: "file" } : { name, value });
      return make("label", "", {}, [make("span", name), field]);
    });
    $(".fields", this.root).replaceChildren(...(modes.includes("form") ? fields : []));
    this.choose(modes[0]);
  }

  choose(mode) {
    this.mode = mode;
    const isTyped = mode === "json" || mode === "text";
    $(".typed", this.root).hidden = !isTyped;
    $(".chosen", this.root).hidden = mode !== "file";
    $(".fields", this.root).hidden = mode !== "form";
    say(".typed span", mode === "json" ? "JSON" : "Text", this.root);
    const example = exampleOf(this.model);
    if (mode === "json") this.text.value = JSON.stringify(example ?? "text");
    if (mode === "text") this.text.value = typeof example === "string" ? example : "text";
    this.showChosen();
  }

  showChosen() {
    const file = this.mode === "file" ? this.file.files[0] : undefined;
    this.showImage($(".preview", this.root), file?.type.startsWith("image/") ? file : null);
    this.showCommand();
  }

  showImage(image, blob) {
    URL.revokeObjectURL(image.src);
    image.hidden = !blob;
    image.src = blob ? URL.createObjectURL(blob) : "";
  }

  body() {
    if (this.mode === "form") return [new FormData(this.form), {}];
    if (this.mode === "file") return [this.file.files[0] ?? "", {}];
    const type = this.mode === "json" ? "application/json" : "text/plain";
    return [this.text.value, { "Content-Type": type }];
  }

  // What a shell sends. Models of a .py file read `-d` as what it is; handlers need a content type.
  showCommand() {
    const words = ["curl", quote(this.url)];
    const isUnknown = !this.kind;
    if (this.mode === "form") {
      for (const field of $(".fields", this.root).querySelectorAll("input")) {
        const file = field.type === "file" && `@${field.files[0]?.name ?? "FILE"}`;
        words.push(file ? "-F" : "--form-string", quote(`${field.name}=${file || field.value}`));
      }
    } else if (this.mode === "file") {
      const file = this.file.files[0];
      if (file?.type && (isUnknown || this.kind === "any")) words.push("-H", quote(`Content-Type: ${file.type}`));
      words.push("-T", quote(file?.name ?? (this.kind === "image" ? "photo.jpg" : "FILE")));
    } else {
      if (isUnknown) words.push("-H", quote(`Content-Type: ${this.body()[1]["Content-Type"]}`));
      words.push(this.text.value.startsWith("@") ? "--data-raw" : "-d", quote(this.text.value));
    }
    say(".curl code", words.join(" "), this.root);
  }

  copy(button) {
    getSelection().selectAllChildren($(".curl code", this.root));
    document.execCommand("copy"); // the newer way is only for https:// and this machine
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  async run(act) {
    const buttons = $(".buttons", this.root);
    buttons.inert = true;
    this.tell("…", false);
    await act().catch((error) => this.tell(`No answer: ${error.message}`, true));
    buttons.inert = false;
  }

  tell(text, isBad) {
    const output = $("output", this.root);
    output.textContent = text;
    output.classList.toggle("bad", isBad);
  }

  async send() {
    const [body, headers] = this.body();
    const started = performance.now();
    const response = await fetch(this.url, { method: "POST", body, headers });
    const pieces = [];
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      pieces.push(value);
      if (response.headers.has("ts_stream_next")) this.showAnswer(new Blob(pieces), "text/plain");
    }
    const spent = ms(performance.now() - started);
    this.tell(`${response.status} ${response.statusText} in ${spent}`, !response.ok);
    await this.showAnswer(new Blob(pieces), response.headers.get("content-type") ?? "");
  }

  async sendMany() {
    const [body, headers] = this.body();
    const started = performance.now();
    const answers = await Promise.all(Array.from({ length: MANY }, async () => {
      const response = await fetch(this.url, { method: "POST", body, headers });
      await response.arrayBuffer();
      return response.ok;
    }));
    const spent = performance.now() - started, failed = answers.filter((one) => !one).length;
    const rate = count((1000 * MANY) / spent);
    this.tell(`${MANY} answers in ${ms(spent)}, ${rate}/s${failed ? `, ${failed} failed` : ""}`, failed > 0);
  }

  async showAnswer(blob, type) {
    const start = [...new Uint8Array(await blob.slice(0, 4).arrayBuffer())]
      .map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const found = IMAGES.find(([magic]) => start.startsWith(magic))?.[1];
    const kind = type.startsWith("image/") ? type : found;
    $(".answer", this.root).hidden = false;
    $(".answer pre", this.root).hidden = Boolean(kind);
    this.showImage($(".answer img", this.root), kind ? blob.slice(0, blob.size, kind) : null);
    if (!kind) say(".answer pre", pretty(await blob.text()).slice(0, MOST_SHOWN), this.root);
  }
}

function pretty(text) {
  // Numbers as they were sent, where the browser can: 2**53 + 1 is no number of JavaScript's.
  const asSent = (_, value, context) =>
    typeof value === "number" && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  try {
    return JSON.stringify(JSON.parse(text, asSent), null, 2);
  } catch {
    return text || "(empty)";
  }
}

async function pollModels() {
  const models = await ask("page/models");
  $("#none").hidden = models.length > 0;
  for (const model of models) {
    cards.get(model.name)?.show(model);
    if (cards.has(model.name)) continue;
    const card = new Card(model);
    card.root.open = cards.size === 0;
    cards.set(model.name, card);
    $("#models").append(card.root);
  }
  for (const [name, card] of cards) {
    if (models.some((one) => one.name === name)) continue;
    card.root.remove();
    cards.delete(name);
  }
}

const troubles = {};

async function keepPolling(poll, pause_ms) {
  for (; ;) {
    // Nobody looks at a page in the background.
    if (!document.hidden) {
      const trouble = await poll().then(() => "", (error) => `No answer: ${error.message}`);
      if (troubles[poll.name] !== trouble) {
        troubles[poll.name] = trouble;
        say("#trouble", Object.values(troubles).find(Boolean) ?? "");
      }
    }
    await new Promise((resolve) => { setTimeout(resolve, pause_ms); });
  }
}

keepPolling(pollModels, MODELS_MS);
keepPolling(pollBatches, POLL_MS);
