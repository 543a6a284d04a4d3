"use strict";
// Draws the cloud of the page with WebGL. packed.py says how the points are packed; report.py what else is in `data`.
(async function () {
  const data = JSON.parse(document.getElementById("cloud-data").textContent);
  const element = (id) => document.getElementById(id);
  const canvas = element("cloud");
  const say = (text) => {
    element("cloud-message").textContent = text;
    element("cloud-message").hidden = false;
  };
  const total = data.counts.reduce((sum, n) => sum + n, 0);
  const gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
  if (!gl) return say("This browser has no WebGL. The pictures below show the cloud from several sides.");
  if (total === 0) return say("The cloud is empty: no point passed the filters.");
  if (!("DecompressionStream" in window)) return say("This browser is too old to unpack the cloud. The pictures below show it from several sides.");

  // ---- unpacking: level after level, so that something is there at once ----
  const STRIDE = 12; // x y z (16 bits each), size, views, red, green, blue, confidence
  async function inflated(text) {
    const binary = atob(text), packed = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  function points(raw, count) {
    const bytes = new Uint8Array(count * STRIDE), words = new Uint16Array(bytes.buffer);
    for (let axis = 0; axis < 3; axis++) {
      const low = axis * count, high = (axis + 3) * count;
      for (let i = 0, value = 0; i < count; i++) {
        const folded = raw[low + i] | (raw[high + i] << 8);
        value = (value + ((folded >> 1) ^ -(folded & 1))) & 65535;
        words[i * (STRIDE / 2) + axis] = value;
      }
    }
    [8, 9, 10, 7, 11, 6].forEach((offset, channel) => { // where red, green, blue, views, confidence, size go
      const plane = (channel + 6) * count;
      for (let i = 0, value = 0; i < count; i++) bytes[i * STRIDE + offset] = value = (value + raw[plane + i]) & 255;
    });
    return bytes;
  }

  // ---- programs ----
  function program(vertex, fragment) {
    const made = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(made, shader);
    }
    gl.linkProgram(made);
    if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made));
    return made;
  }
  const cloud = program(`
    attribute vec3 position; attribute vec3 colour; attribute float views, confidence, size;
    uniform mat4 matrix; uniform float pointSize, minViews, minConfidence, maxViews; uniform int mode; uniform vec3 ramp[9];
    varying vec3 shade;
    vec3 ramped(float t) { float x = clamp(t, 0.0, 0.999) * 8.0; int i = int(x); return mix(ramp[i], ramp[i + 1], x - float(i)); }
    void main() {
      gl_Position = matrix * vec4(position * 2.0 - 1.0, 1.0);
      gl_PointSize = clamp(pointSize * exp2(size * 255.0 / 16.0) / gl_Position.w, 1.0, 40.0);
      if (views * 255.0 < minViews - 0.5 || confidence < minConfidence - 0.03) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
      shade = mode == 0 ? colour : mode == 1 ? ramped((views * 255.0 - 1.0) / max(1.0, maxViews - 1.0)) : ramped(confidence);
    }`, `
    precision mediump float; varying vec3 shade;
    void main() { vec2 d = gl_PointCoord - 0.5; if (dot(d, d) > 0.25) discard; gl_FragColor = vec4(shade, 1.0); }`);
  const lines = program(
    "attribute vec3 corner; uniform mat4 matrix; void main() { gl_Position = matrix * vec4(corner, 1.0); }",
    "precision mediump float; uniform vec3 shade; void main() { gl_FragColor = vec4(shade, 1.0); }");
  const uniform = (name) => gl.getUniformLocation(cloud, name);
  const attributes = [["position", 3, gl.UNSIGNED_SHORT, 0], ["size", 1, gl.UNSIGNED_BYTE, 6], ["views", 1, gl.UNSIGNED_BYTE, 7],
    ["colour", 3, gl.UNSIGNED_BYTE, 8], ["confidence", 1, gl.UNSIGNED_BYTE, 11]];
  const pointBuffer = gl.createBuffer(), lineBuffer = gl.createBuffer();
  gl.bindBuffer(gl.ARRAY_BUFFER, pointBuffer);
  gl.bufferData(gl.ARRAY_BUFFER, total * STRIDE, gl.STATIC_DRAW);
  const EDGES = [0, 1, 0, 2, 0, 3, 0, 4, 1, 2, 2, 3, 3, 4, 4, 1]; // of a frustum: its centre and four corners
  const frusta = data.cameras.map((camera) => camera.points);
  gl.bindBuffer(gl.ARRAY_BUFFER, lineBuffer);
  gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(frusta.flatMap((p) => EDGES.flatMap((i) => p.slice(3 * i, 3 * i + 3)))), gl.STATIC_DRAW);

  // ---- camera: an orbit around a target; `axes` are side, front and up ----
  const add = (a, b, s) => [a[0] + s * b[0], a[1] + s * b[1], a[2] + s * b[2]];
  const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const unit = (a) => { const n = Math.hypot(...a) || 1; return [a[0] / n, a[1] / n, a[2] / n]; };
  const FIELD = Math.tan(0.45); // half of the shorter side of the window, one unit away
  const upField = () => FIELD * Math.max(1, canvas.clientHeight / canvas.clientWidth);
  // Far enough away to see the cameras too, as long as the cloud stays large.
  const reaches = data.cameras.map((camera) => dot(camera.points.slice(0, 3), data.axes[1])).sort((a, b) => a - b);
  const behind = 1.3 * (reaches[reaches.length >> 1] || 0);
  const start = { turn: 0.25, lift: 0.25, distance: Math.max(data.distance, Math.min(1.5 * data.distance, behind)), target: [0, 0, 0] };
  let orbit = { ...start }, chosen = -1;
  function frame() {
    const [side, front, up] = data.axes;
    const c = Math.cos(orbit.lift), s = Math.sin(orbit.lift);
    const flat = add(add([0, 0, 0], front, c * Math.cos(orbit.turn)), side, c * Math.sin(orbit.turn));
    const back = add(flat, up, s);
    const right = unit(cross(up, back));
    return { eye: add(orbit.target, back, orbit.distance), right, down: cross(right, back), back };
  }
  function matrix() {
    const { eye, right, down, back } = frame();
    const near = orbit.distance / 100, far = orbit.distance * 4 + 12;
    const aspect = canvas.width / canvas.height, field = upField();
    const rows = [right, [-down[0], -down[1], -down[2]], back].map((axis) => [...axis, -dot(axis, eye)]);
    const out = new Float32Array(16); // column-major
    for (let i = 0; i < 4; i++) {
      const z = rows[2][i];
      out[4 * i] = rows[0][i] / field / aspect;
      out[4 * i + 1] = rows[1][i] / field;
      out[4 * i + 2] = ((far + near) / (near - far)) * z + (i === 3 ? (2 * far * near) / (near - far) : 0);
      out[4 * i + 3] = -z;
    }
    return out;
  }

  // ---- drawing: a share of the points while something moves, all of them when it rests ----
  const value = (id) => Number(element(id).value);
  const MOVING = matchMedia("(pointer: coarse)").matches ? 150000 : 500000;
  let loaded = 0, moving = false, resting = 0, waiting = false;
  function draw() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    gl.viewport(0, 0, width, height);
    gl.clearColor(0.094, 0.102, 0.118, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.enable(gl.DEPTH_TEST);
    const m = matrix(), drawn = moving ? Math.min(loaded, MOVING) : loaded;
    gl.useProgram(cloud);
    gl.uniformMatrix4fv(uniform("matrix"), false, m);
    // Fewer points stand further apart. Points lie at random, so only discs twice as wide as the spacing close a surface.
    gl.uniform1f(uniform("pointSize"), 2 * value("point-size") * data.spacing * Math.sqrt(total / drawn) * height / (2 * upField()));
    gl.uniform1f(uniform("minViews"), value("min-views"));
    gl.uniform1f(uniform("minConfidence"), value("min-confidence"));
    gl.uniform1f(uniform("maxViews"), data.maxViews);
    gl.uniform1i(uniform("mode"), value("colour-mode"));
    gl.uniform3fv(uniform("ramp"), data.ramp.flat().map((c) => c / 255));
    gl.bindBuffer(gl.ARRAY_BUFFER, pointBuffer);
    for (const [name, count, type, offset] of attributes) {
      const place = gl.getAttribLocation(cloud, name);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, count, type, true, STRIDE, offset);
    }
    gl.drawArrays(gl.POINTS, 0, drawn);
    if (element("show-cameras").checked && frusta.length) drawCameras(m);
    canvas.dataset.drawn = String(drawn);
  }
  function drawCameras(m) {
    for (let i = 0; i < 8; i++) gl.disableVertexAttribArray(i);
    gl.useProgram(lines);
    gl.uniformMatrix4fv(gl.getUniformLocation(lines, "matrix"), false, m);
    const place = gl.getAttribLocation(lines, "corner"), shade = gl.getUniformLocation(lines, "shade");
    gl.bindBuffer(gl.ARRAY_BUFFER, lineBuffer);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, 3, gl.FLOAT, false, 0, 0);
    gl.uniform3f(shade, 0.36, 0.75, 0.83);
    gl.drawArrays(gl.LINES, 0, EDGES.length * frusta.length);
    gl.uniform3f(shade, 1, 0.8, 0.25);
    gl.disable(gl.DEPTH_TEST);
    if (chosen >= 0) gl.drawArrays(gl.LINES, EDGES.length * chosen, EDGES.length);
    gl.disableVertexAttribArray(place);
  }
  function redraw(isMoving) {
    if (isMoving === true) {
      moving = true;
      clearTimeout(resting);
      resting = setTimeout(() => { moving = false; redraw(); }, 160);
    }
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  // ---- cameras: a click on one, or the list, goes where its photo was taken ----
  function choose(index) {
    chosen = index;
    element("camera").value = String(index);
    const box = element("camera-photo");
    box.hidden = index < 0;
    if (index < 0) orbit = { ...start };
    else {
      const p = frusta[index], eye = p.slice(0, 3), [side, front, up] = data.axes;
      const middle = [0, 1, 2].map((axis) => (p[3 + axis] + p[6 + axis] + p[9 + axis] + p[12 + axis]) / 4);
      const forward = unit(add(middle, eye, -1)), reach = Math.max(0.1, dot(add([0, 0, 0], eye, -1), forward));
      const back = [-forward[0], -forward[1], -forward[2]];
      orbit = { lift: Math.asin(Math.max(-1, Math.min(1, dot(back, up)))), turn: Math.atan2(dot(back, side), dot(back, front)),
        distance: reach * 1.15, target: add(eye, forward, reach) }; // a step back, so that the camera is in sight
      const card = document.getElementById(data.cameras[index].card || "");
      box.querySelector("b").textContent = data.cameras[index].name;
      box.querySelector("img").src = card ? card.querySelector("img").src : "data:,";
      box.querySelector("img").hidden = box.querySelector("a").hidden = !card;
      box.querySelector("a").href = "#" + (data.cameras[index].card || "");
    }
    redraw();
  }
  function cameraAt(x, y) { // CSS pixels; the nearest centre or corner within a finger's width
    const m = matrix();
    let best = -1, nearest = 22;
    frusta.forEach((p, index) => [0, 3, 6, 9, 12].forEach((i) => {
      const [cx, cy, , w] = [0, 1, 2, 3].map((row) => m[row] * p[i] + m[4 + row] * p[i + 1] + m[8 + row] * p[i + 2] + m[12 + row]);
      const gap = Math.hypot((cx / w + 1) / 2 * canvas.clientWidth - x, (1 - cy / w) / 2 * canvas.clientHeight - y);
      if (w > 0 && gap < nearest) { nearest = gap; best = index; }
    }));
    return best;
  }

  // ---- hands ----
  const fingers = new Map();
  let travelled = 0;
  function move(dx, dy, pan) {
    if (pan) {
      const { right, down } = frame();
      const step = (2 * upField() * orbit.distance) / canvas.clientHeight;
      orbit.target = add(add(orbit.target, right, -dx * step), down, -dy * step);
    } else {
      orbit.turn -= dx * 0.008;
      orbit.lift = Math.max(-1.5, Math.min(1.5, orbit.lift + dy * 0.008));
    }
    redraw(true);
  }
  const zoom = (factor) => { orbit.distance = Math.max(0.01, Math.min(20, orbit.distance * factor)); redraw(true); };
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, e); travelled = 0; });
  canvas.addEventListener("pointerup", (e) => {
    const box = canvas.getBoundingClientRect();
    if (fingers.size === 1 && travelled < 6 && element("show-cameras").checked) {
      const found = cameraAt(e.clientX - box.left, e.clientY - box.top);
      if (found >= 0) choose(found);
    }
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => fingers.delete(e.pointerId));
  canvas.addEventListener("pointermove", (e) => {
    const before = fingers.get(e.pointerId);
    if (!before) return;
    const dx = e.clientX - before.clientX, dy = e.clientY - before.clientY;
    travelled += Math.abs(dx) + Math.abs(dy);
    if (fingers.size === 2) {
      const other = [...fingers.values()].find((f) => f.pointerId !== e.pointerId);
      const gap = (f) => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY);
      zoom(gap(before) / Math.max(1, gap(e)));
      move(dx / 2, dy / 2, true);
    } else move(dx, dy, e.shiftKey || e.buttons === 2 || e.buttons === 4);
    fingers.set(e.pointerId, e);
  });
  canvas.addEventListener("contextmenu", (e) => e.preventDefault());
  canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoom(Math.exp(e.deltaY * 0.001)); }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const keys = { ArrowLeft: [-20, 0], ArrowRight: [20, 0], ArrowUp: [0, -20], ArrowDown: [0, 20] };
    if (e.key in keys) { e.preventDefault(); move(...keys[e.key], e.shiftKey); }
    if (e.key === "+" || e.key === "=") zoom(0.9);
    if (e.key === "-") zoom(1.1);
    if (e.key === "n") choose(chosen + 1 < frusta.length ? chosen + 1 : -1);
    if (e.key === "p") choose(chosen < 0 ? frusta.length - 1 : chosen - 1);
  });

  // ---- controls ----
  const list = element("camera");
  data.cameras.forEach((camera, index) => list.add(new Option(camera.name, String(index))));
  list.addEventListener("input", () => choose(value("camera")));
  element("reset-view").addEventListener("click", () => choose(-1));
  function legend() {
    const mode = value("colour-mode");
    element("cloud-legend").hidden = mode === 0;
    const [low, high] = mode === 1 ? ["1 view", data.maxViews + " views"] : ["confidence 0", "1"];
    element("legend-low").textContent = low;
    element("legend-high").textContent = high;
  }
  const shown = () => { for (const id of ["point-size", "min-views", "min-confidence"]) element(id + "-value").textContent = value(id); };
  for (const id of ["point-size", "min-views", "min-confidence", "colour-mode", "show-cameras"])
    element(id).addEventListener("input", () => { legend(); shown(); redraw(); });
  window.addEventListener("resize", () => redraw());
  for (const link of document.querySelectorAll("[data-camera]")) link.addEventListener("click", () => {
    choose(Number(link.dataset.camera));
    canvas.scrollIntoView({ block: "center" });
  });
  legend();
  shown();

  let at = 0;
  for (let level = 0; level < data.counts.length; level++) {
    const raw = await inflated(data.points.slice(at, at + data.lengths[level]));
    at += data.lengths[level];
    gl.bindBuffer(gl.ARRAY_BUFFER, pointBuffer);
    gl.bufferSubData(gl.ARRAY_BUFFER, loaded * STRIDE, points(raw, data.counts[level]));
    loaded += data.counts[level];
    draw();
  }
  canvas.dataset.ready = "yes";
})();
