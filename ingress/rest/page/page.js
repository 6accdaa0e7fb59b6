// The page of an inference port. All that models say is text here: textContent, never HTML.
const POLL_MS = 500, MODELS_MS = 2000, KEPT = 256, WINDOW_S = 3, COLUMN_PX = 9;
const MOST_SHOWN = 200_000, MOST_ZEROS = 4096, MANY = 100;
const WHY = { full: "full", delay: "max_batch_delay was over", idle: "a worker was free",
  adaptive: "more was not worth the wait" };
const MODES = { text: ["text", "file"], json: ["json", "file"], tensor: ["json", "file"],
  image: ["file"], bytes: ["file", "text"], form: ["form", "json"] };
const LABELS = { text: "Text", json: "JSON", file: "File", form: "Form" };
const IMAGES = [["89504e47", "image/png"], ["ffd8ff", "image/jpeg"], ["47494638", "image/gif"]];

const $ = (selector, root = document) => root.querySelector(selector);
const say = (selector, text, root) => { $(selector, root).textContent = text; };
const few = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const count = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const ms = (value) => (value < 1000 ? `${few(value)} ms` : `${few(value / 1000)} s`);
const sum = (values) => values.reduce((all, one) => all + one, 0);
const product = (values) => values.reduce((all, one) => all * Math.max(one, 1), 1);
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const unique = (values) => [...new Set(values)].join(", ");

function make(tag, text = "", properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), { textContent: text, ...properties });
  made.append(...children);
  return made;
}

async function ask(path) {
  const response = await fetch(path);
  const found = await response.json();
  if (!response.ok) throw new Error(found.message ?? response.statusText);
  return found;
}

// --- batches

let batches = [], after = 0, isPointing = false;

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
    onmouseenter: () => { isPointing = true; say("#told", describe(batch)); },
    onmouseleave: () => { isPointing = false; },
  }, [bar(batch.size / batch.full_size, "size"), make("span", "", { className: "times" }, times)]);
}

function row(batch) {
  const { model, size, full_size, closed_by, wait_ms, handler_ms } = batch;
  const cells = [model, `${size} of ${full_size}`, WHY[closed_by], ms(wait_ms), ms(handler_ms)];
  return make("tr", "", {}, cells.map((text) => make("td", text)));
}

function showBatches(now_s) {
  const shown = batches.slice(-Math.floor($("#strip").clientWidth / COLUMN_PX));
  if (!shown.length) return;
  const last = `Last: ${describe(shown.at(-1))}`;
  const longest_ms = Math.max(...shown.map((one) => one.wait_ms + one.handler_ms), 0.001);
  // One that is pointed at stays under the pointer.
  if (!isPointing) {
    $("#strip").replaceChildren(...shown.map((one) => column(one, longest_ms)));
    say("#told", last);
  }
  $("#strip").ariaLabel = `The last ${shown.length} batches. ${last}`;
  $("#strip").dataset.longest = `time, at most ${ms(longest_ms)}`;
  $("#table").replaceChildren(...shown.slice(-10).reverse().map(row));
  const recent = batches.filter((one) => one.at_s > now_s - WINDOW_S);
  const span_s = recent.length < KEPT ? WINDOW_S : now_s - recent[0].at_s;
  const requests = sum(recent.map((one) => one.size));
  const middle = (word) => (recent.length ? ms(median(recent.map((one) => one[word]))) : "–");
  say("#request-rate", count(requests / span_s));
  say("#batch-rate", count(recent.length / span_s));
  say("#mean-size", recent.length ? few(requests / recent.length) : "–");
  say("#median-wait", middle("wait_ms"));
  say("#median-handler", middle("handler_ms"));
}

async function pollBatches() {
  const found = await ask(`page/batches?after=${after}`);
  batches = [...batches, ...found.batches].slice(-KEPT);
  after = batches.at(-1)?.at_s ?? 0;
  const share = `of one ingress of ${found.processes}: each shows its own share`;
  say("#share", found.processes > 1 ? share : "");
  showBatches(found.now_s);
}

// --- models

const isFile = (schema) => schema?.format === "binary" || schema?.contentEncoding === "base64";
const quote = (text) => (/^[\w@:.,/=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function exampleOf(known) {
  if ("example" in known) return known.example;
  const inputs = known.inputs ?? [];
  const made = inputs.map((one) => [one.name, zeros(one.shape.slice(1))]);
  if (made.length > 1) return Object.fromEntries(made);
  return made.length ? made[0][1] : sample(known.input?.schema);
}

function zeros([first, ...rest]) {
  if (first === undefined) return 0;
  const length = product([first, ...rest]) > MOST_ZEROS ? 1 : Math.max(first, 1);
  return Array.from({ length }, () => zeros(rest));
}

function sample(schema, levels = 5) {
  const one = schema?.anyOf?.[0] ?? schema ?? {};
  const given = one.default ?? one.const ?? one.enum?.[0];
  if (given !== undefined || !levels) return given ?? null;
  const inner = ([name, value]) => [name, sample(value, levels - 1)];
  return {
    object: () => Object.fromEntries(Object.entries(one.properties ?? {}).map(inner)),
    array: () => (one.items?.type ? [sample(one.items, levels - 1)] : [1, 2, 3]),
    string: () => "text", boolean: () => true, integer: () => 1, number: () => 1,
  }[one.type]?.() ?? null;
}

class Card {
  constructor(model) {
    this.root = $("#model").content.cloneNode(true).firstElementChild;
    this.url = new URL(`predictions/${encodeURIComponent(model.name)}`, location.href).href;
    this.form = $("form", this.root);
    this.text = $("textarea", this.root);
    this.file = $(".chosen input", this.root);
    say("h3", model.name, this.root);
    this.form.onsubmit = (event) => { event.preventDefault(); this.run(() => this.send()); };
    $(".many", this.root).onclick = () => this.run(() => this.sendMany());
    $(".copy", this.root).onclick = (event) => this.copy(event.target);
    this.form.oninput = () => this.showCommand();
    this.file.onchange = () => this.showChosen();
    this.show(model);
  }

  show(model) {
    const ready = model.workers.filter((one) => one.state === "READY");
    const others = model.workers.filter((one) => one.state !== "READY");
    // What the form is made of stays while the only worker starts again.
    if (ready.length || !this.known) this.learn(model.interface);
    const { known } = this;
    const tensors = (list = []) => list.map((one) => `${one.name} ${one.datatype} [${one.shape}]`);
    const types = known.input && `${known.input.type || this.kind} → ${known.output?.type || "any"}`;
    this.isHandler = model.is_handler;
    say(".version", model.version, this.root);
    say(".kind", types || (model.is_handler ? "TorchServe handler" : ""), this.root);
    say(".about", known.summary || "", this.root);
    const states = [ready.length && `${ready.length} ready`, unique(others.map((one) => one.state.toLowerCase()))];
    say(".state", states.filter(Boolean).join(", ") || "no worker", this.root);
    $(".state", this.root).classList.toggle("bad", !ready.length);
    const wait = `at most ${model.max_batch_delay_ms} ms`;
    const facts = {
      Input: tensors(known.inputs).join(", ") || (known.input && `${known.input.type} (${this.kind})`),
      Output: tensors(known.outputs).join(", ") || known.output?.type,
      Batch: `up to ${model.batch_size}, waits ${wait}, ${model.batch_policy}`,
      Workers: ready.length ? `${ready.length} on ${unique(ready.map((one) => one.device))}` : "none is ready",
      Versions: model.versions.length > 1 && model.versions.join(", "),
    };
    $(".facts", this.root).replaceChildren(...Object.entries(facts).flatMap(
      ([name, value]) => (value ? [make("dt", name), make("dd", value)] : [])));
    this.showCommand();
  }

  // Takes in what the worker says, shows how such input can be sent, and fills in the example.
  learn(known) {
    if (JSON.stringify(known) === JSON.stringify(this.known)) return;
    Object.assign(this, { known, kind: known.input?.kind ?? "" });
    const modes = MODES[this.kind] ?? ["json", "text", "file"];
    $(".modes", this.root).replaceChildren(make("legend", "Try it with"), ...modes.map((mode, i) => {
      const onchange = () => this.choose(mode);
      const radio = make("input", "", { type: "radio", name: "mode", checked: i === 0, onchange });
      return make("label", "", {}, [radio, ` ${LABELS[mode]}`]);
    }));
    const fields = Object.entries(known.input?.schema?.properties ?? {}).map(([name, schema]) => {
      const example = known.example?.[name] ?? sample(schema) ?? "";
      const value = typeof example === "string" ? example : JSON.stringify(example);
      const field = make("input", "", isFile(schema) ? { name, type: "file" } : { name, value });
      return make("label", "", {}, [make("span", name), field]);
    });
    $(".fields", this.root).replaceChildren(...(modes.includes("form") ? fields : []));
    this.choose(modes[0]);
  }

  choose(mode) {
    this.mode = mode;
    const isTyped = mode === "json" || mode === "text", example = exampleOf(this.known);
    $(".typed", this.root).hidden = !isTyped;
    $(".chosen", this.root).hidden = mode !== "file";
    $(".fields", this.root).hidden = mode !== "form";
    say(".typed span", LABELS[mode], this.root);
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

  request() {
    if (this.mode === "file") return { method: "POST", body: this.file.files[0] ?? "" };
    if (this.mode === "form") {
      const body = new FormData();
      for (const { name, files, value } of this.root.querySelectorAll(".fields input")) {
        body.append(name, files ? files[0] ?? "" : value);
      }
      return { method: "POST", body };
    }
    // Most of TorchServe's handlers know bytes, as `curl -T` sends them, rather than text.
    const text = this.isHandler ? "application/octet-stream" : "text/plain";
    const headers = { "Content-Type": this.mode === "json" ? "application/json" : text };
    return { method: "POST", body: this.text.value, headers };
  }

  // Models of a .py file read what `-d` sends as what it is; a handler goes by the content type.
  showCommand() {
    const file = this.file.files[0], words = ["curl", quote(this.url)];
    const type = this.request().headers?.["Content-Type"] ?? (this.mode === "file" && file?.type);
    const needsType = this.isHandler || (this.kind === "any" && this.mode === "file");
    if (type && needsType) words.push("-H", quote(`Content-Type: ${type}`));
    if (this.mode === "form") {
      for (const { name, files, value } of this.root.querySelectorAll(".fields input")) {
        const text = files ? `@${files[0]?.name ?? "FILE"}` : value;
        words.push(files ? "-F" : "--form-string", quote(`${name}=${text}`));
      }
    } else if (this.mode === "file") {
      words.push("-T", quote(file?.name ?? (this.kind === "image" ? "photo.jpg" : "FILE")));
    } else {
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
    this.tell("…");
    await act().catch((error) => this.tell(`No answer: ${error.message}`, true));
    buttons.inert = false;
  }

  tell(text, isBad = false) {
    say("output", text, this.root);
    $("output", this.root).classList.toggle("bad", isBad);
  }

  async send() {
    const started_ms = performance.now(), pieces = [];
    const response = await fetch(this.url, this.request());
    const reader = response.body.getReader();
    for (let read; !(read = await reader.read()).done;) {
      pieces.push(read.value);
      if (response.headers.has("ts_stream_next")) await this.showAnswer(new Blob(pieces));
    }
    const spent = ms(performance.now() - started_ms);
    await this.showAnswer(new Blob(pieces), response.headers.get("content-type") ?? "");
    this.tell(`${response.status} ${response.statusText} in ${spent}`, !response.ok);
  }

  async sendMany() {
    const started_ms = performance.now();
    const answers = await Promise.all(Array.from({ length: MANY }, async () => {
      const response = await fetch(this.url, this.request());
      await response.arrayBuffer();
      return response.ok;
    }));
    const spent_ms = performance.now() - started_ms, failed = answers.filter((ok) => !ok).length;
    const rate = `${MANY} answers in ${ms(spent_ms)}, ${count((1000 * MANY) / spent_ms)}/s`;
    this.tell(failed ? `${rate}, ${failed} failed` : rate, failed > 0);
  }

  async showAnswer(blob, type = "text/plain") {
    const start = new Uint8Array(await blob.slice(0, 4).arrayBuffer());
    const magic = [...start].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const image = type.startsWith("image/") ? type : IMAGES.find(([one]) => magic.startsWith(one))?.[1];
    $(".answer", this.root).hidden = false;
    $(".answer pre", this.root).hidden = Boolean(image);
    this.showImage($(".answer img", this.root), image ? blob.slice(0, blob.size, image) : null);
    if (!image) say(".answer pre", pretty(await blob.text()).slice(0, MOST_SHOWN), this.root);
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

const cards = new Map(), troubles = {};

async function pollModels() {
  const models = await ask("page/models");
  $("#none").hidden = models.length > 0;
  const names = models.map((one) => one.name), isNew = names.join() !== [...cards.keys()].join();
  const known = new Map(cards);
  cards.clear();
  for (const model of models) {
    cards.set(model.name, known.get(model.name) ?? new Card(model));
    known.get(model.name)?.show(model);
  }
  if (!known.size && models.length) cards.get(names[0]).root.open = true;
  if (isNew) $("#models").replaceChildren(...[...cards.values()].map((card) => card.root));
}

async function keepPolling(poll, pause_ms) {
  for (; ;) {
    // Nobody looks at a page in the background.
    if (!document.hidden) {
      const trouble = await poll().then(() => "", (error) => `No answer: ${error.message}`);
      troubles[poll.name] = trouble;
      const told = Object.values(troubles).find(Boolean) ?? "";
      if (told !== $("#trouble").textContent) say("#trouble", told);
    }
    await new Promise((resolve) => { setTimeout(resolve, pause_ms); });
  }
}

keepPolling(pollModels, MODELS_MS);
keepPolling(pollBatches, POLL_MS);
