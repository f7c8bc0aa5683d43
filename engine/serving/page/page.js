// A conversation with the server that this page comes from: chat completions as a stream. Texts are inserted as text alone, never as HTML.

const element = (id) => document.getElementById(id);
const messages = element("messages");
const text = element("text");
let conversation = []; // of {role, content}, without the system message
let running = null; // the AbortController of the reply that is being made

function add(parent, tag, kind, content = "") {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = content;
  parent.append(made);
  return made;
}

function headers() {
  const key = element("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  return new Error(body.error?.message ?? `the server responded with status ${response.status}`);
}

// The events of a stream; an error of the server, or a stream that ends before `[DONE]`, is thrown.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server closed the connection in the middle of the reply");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice("data:".length).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function body() {
  const system = element("system").value.trim();
  const temperature = element("temperature").value;
  const most = element("max-tokens").value;
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream: true,
    stream_options: { include_usage: true },
    ...(temperature ? { temperature: Number(temperature) } : {}),
    ...(most ? { max_tokens: Number(most) } : {}),
    ...(element("thinking").checked ? {} : { chat_template_kwargs: { enable_thinking: false } }),
  };
}

// Where a reply is shown: its thought apart, then its text, then a note.
class Shown {
  constructor() {
    this.article = add(messages, "article", "assistant");
    this.content = "";
    this.note = "";
  }

  think(piece) {
    if (!this.thought) {
      const details = add(this.article, "details", "thought");
      add(details, "summary", "", "Thought");
      details.open = true;
      this.thought = add(details, "p", "");
    }
    this.thought.append(piece);
  }

  say(piece) {
    if (!this.said) {
      if (this.thought) this.thought.parentElement.open = false;
      this.said = add(this.article, "p", "text");
    }
    this.said.append(piece);
    this.content += piece;
  }

  take(event) {
    const atEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 40;
    for (const { delta, finish_reason: reason } of event.choices) {
      if (delta.reasoning_content) this.think(delta.reasoning_content);
      if (delta.content) this.say(delta.content);
      if (reason === "length") this.note = "the reply reached its most tokens";
    }
    if (event.usage) {
      const { prompt_tokens: prompt, completion_tokens: completion } = event.usage;
      this.note = [this.note, `${prompt} tokens of the conversation, ${completion} of the reply`].filter(Boolean).join("; ");
    }
    if (atEnd) messages.scrollTop = messages.scrollHeight;
  }

  end(note, wrong = false) {
    add(this.article, "p", wrong ? "note wrong" : "note", note);
    messages.scrollTop = messages.scrollHeight;
  }
}

function busy(is) {
  element("send").hidden = is;
  element("stop").hidden = !is;
}

// Ask for a reply. A message that gets none goes back into the field, so that it can be sent again.
async function send(message) {
  const mine = (running = new AbortController());
  busy(true);
  const article = add(messages, "article", "user");
  add(article, "p", "text", message);
  conversation.push({ role: "user", content: message });
  const shown = new Shown();
  try {
    const options = { method: "POST", headers: headers(), body: JSON.stringify(body()), signal: mine.signal };
    const response = await fetch("v1/chat/completions", options);
    if (!response.ok) throw await refusal(response);
    for await (const event of events(response)) if (running === mine) shown.take(event);
    shown.end(shown.note);
  } catch (error) {
    if (mine.signal.aborted) shown.end("stopped");
    else {
      shown.end(error.message, true);
      shown.content = "";
    }
  }
  if (running !== mine) return; // a new conversation has begun meanwhile
  running = null;
  busy(false);
  if (shown.content) conversation.push({ role: "assistant", content: shown.content });
  else {
    conversation.pop();
    if (!text.value) text.value = message;
  }
  text.focus();
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = text.value;
  if (running || !message.trim()) return;
  text.value = "";
  send(message);
});
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("form").requestSubmit();
});
element("stop").addEventListener("click", () => running?.abort());
element("reset").addEventListener("click", () => {
  running?.abort();
  running = null;
  busy(false);
  conversation = [];
  messages.replaceChildren();
  text.focus();
});

async function name() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.ok) element("model").textContent = document.title = (await response.json()).data[0].id;
  else if (response.status === 401) element("settings").open = true;
}
element("key").addEventListener("change", name);
name();
