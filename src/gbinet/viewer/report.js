"use strict";
// Draws the cloud of the page with WebGL. The data: 16-bit positions in the cube [-1, 1]^3, colours, views, confidence.
(function () {
  const data = JSON.parse(document.getElementById("cloud-data").textContent);
  const canvas = document.getElementById("cloud");
  const gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
  const say = (text) => {
    const box = document.getElementById("cloud-message");
    box.textContent = text;
    box.style.display = "flex";
  };
  if (!gl) return say("This browser has no WebGL. The pictures below show the cloud from several sides.");
  if (data.count === 0) return say("The cloud is empty: no point passed the filters.");

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const buffers = {
    position: { array: new Uint16Array(bytes(data.position).buffer), size: 3, type: gl.UNSIGNED_SHORT },
    colour: { array: bytes(data.colour), size: 3, type: gl.UNSIGNED_BYTE },
    views: { array: bytes(data.views), size: 1, type: gl.UNSIGNED_BYTE },
    confidence: { array: bytes(data.confidence), size: 1, type: gl.UNSIGNED_BYTE },
  };

  const vertexSource = `
    attribute vec3 position; attribute vec3 colour; attribute float views; attribute float confidence;
    uniform mat4 matrix; uniform float pointSize; uniform float minViews; uniform float minConfidence;
    uniform float maxViews; uniform int mode;
    varying vec3 shade;
    vec3 ramp(float t) { return clamp(vec3(1.6 * t - 0.4, 0.15 + 0.75 * t, 0.55 - 0.35 * t + 0.3 * sin(3.1 * t)), 0.0, 1.0); }
    void main() {
      gl_Position = matrix * vec4(position * 2.0 - 1.0, 1.0);
      gl_PointSize = clamp(pointSize / gl_Position.w, 1.0, 24.0);
      if (views * 255.0 < minViews - 0.5 || confidence < minConfidence - 0.002) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
      shade = mode == 0 ? colour : mode == 1 ? ramp((views * 255.0 - 1.0) / max(1.0, maxViews - 1.0)) : ramp(confidence);
    }`;
  const fragmentSource = `
    precision mediump float; varying vec3 shade;
    void main() { vec2 d = gl_PointCoord - 0.5; if (dot(d, d) > 0.25) discard; gl_FragColor = vec4(shade, 1.0); }`;
  const lineVertexSource = `attribute vec3 corner; uniform mat4 matrix; void main() { gl_Position = matrix * vec4(corner, 1.0); }`;
  const lineFragmentSource = `precision mediump float; void main() { gl_FragColor = vec4(0.36, 0.75, 0.83, 1.0); }`;

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
  const points = program(vertexSource, fragmentSource);
  const lines = program(lineVertexSource, lineFragmentSource);
  for (const entry of Object.values(buffers)) {
    entry.buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, entry.buffer);
    gl.bufferData(gl.ARRAY_BUFFER, entry.array, gl.STATIC_DRAW);
  }
  const lineBuffer = gl.createBuffer();
  gl.bindBuffer(gl.ARRAY_BUFFER, lineBuffer);
  gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data.lines), gl.STATIC_DRAW);

  // ---- camera: an orbit around a target, z of `axes` is up ----
  const start = { turn: 0, lift: 0.25, distance: data.distance, target: data.target.slice() };
  let orbit = { ...start, target: start.target.slice() };
  const add = (a, b, s) => [a[0] + s * b[0], a[1] + s * b[1], a[2] + s * b[2]];
  const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const unit = (a) => { const n = Math.hypot(...a); return [a[0] / n, a[1] / n, a[2] / n]; };
  function frame() {
    const [side, front, up] = data.axes;
    const c = Math.cos(orbit.lift), s = Math.sin(orbit.lift);
    let direction = [0, 0, 0];
    direction = add(direction, front, c * Math.cos(orbit.turn));
    direction = add(direction, side, c * Math.sin(orbit.turn));
    direction = add(direction, up, s);
    const right = unit(cross(up, direction));
    return { eye: add(orbit.target, direction, orbit.distance), right, down: cross(right, direction), back: direction };
  }
  function matrix() {
    const { eye, right, down, back } = frame();
    const above = [-down[0], -down[1], -down[2]];
    const near = orbit.distance / 100, far = orbit.distance * 4 + 12;
    const f = 1 / Math.tan(0.45), aspect = canvas.width / canvas.height;
    const rows = [right, above, back].map((axis) => [...axis, -dot(axis, eye)]);
    const projection = [f / aspect, f, (far + near) / (near - far), (2 * far * near) / (near - far)];
    const out = new Float32Array(16); // column-major
    for (let i = 0; i < 4; i++) {
      const z = i < 3 ? rows[2][i] : rows[2][3];
      out[4 * i] = projection[0] * rows[0][i];
      out[4 * i + 1] = projection[1] * rows[1][i];
      out[4 * i + 2] = projection[2] * z + (i === 3 ? projection[3] : 0);
      out[4 * i + 3] = -z;
    }
    return out;
  }

  const value = (id) => Number(document.getElementById(id).value);
  function draw() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    gl.viewport(0, 0, width, height);
    gl.clearColor(0.094, 0.102, 0.118, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.enable(gl.DEPTH_TEST);
    const m = matrix();
    gl.useProgram(points);
    const uniform = (name) => gl.getUniformLocation(points, name);
    gl.uniformMatrix4fv(uniform("matrix"), false, m);
    gl.uniform1f(uniform("pointSize"), value("point-size") * data.spacing * height);
    gl.uniform1f(uniform("minViews"), value("min-views"));
    gl.uniform1f(uniform("minConfidence"), value("min-confidence"));
    gl.uniform1f(uniform("maxViews"), data.maxViews);
    gl.uniform1i(uniform("mode"), value("colour-mode"));
    for (const [name, entry] of Object.entries(buffers)) {
      const place = gl.getAttribLocation(points, name);
      if (place < 0) continue;
      gl.bindBuffer(gl.ARRAY_BUFFER, entry.buffer);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, entry.size, entry.type, true, 0, 0);
    }
    gl.drawArrays(gl.POINTS, 0, data.count);
    if (document.getElementById("show-cameras").checked && data.lines.length) {
      gl.useProgram(lines);
      gl.uniformMatrix4fv(gl.getUniformLocation(lines, "matrix"), false, m);
      for (let i = 0; i < 8; i++) gl.disableVertexAttribArray(i);
      const place = gl.getAttribLocation(lines, "corner");
      gl.bindBuffer(gl.ARRAY_BUFFER, lineBuffer);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 3, gl.FLOAT, false, 0, 0);
      gl.drawArrays(gl.LINES, 0, data.lines.length / 3);
      gl.disableVertexAttribArray(place);
    }
    canvas.dataset.drawn = String(data.count);
  }
  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  // ---- hands ----
  const fingers = new Map();
  function move(dx, dy, pan) {
    if (pan) {
      const { right, down } = frame();
      const step = (2 * Math.tan(0.45) * orbit.distance) / canvas.clientHeight;
      orbit.target = add(add(orbit.target, right, -dx * step), down, -dy * step);
    } else {
      orbit.turn -= dx * 0.008;
      orbit.lift = Math.max(-1.5, Math.min(1.5, orbit.lift + dy * 0.008));
    }
    redraw();
  }
  const zoom = (factor) => { orbit.distance = Math.max(0.02, Math.min(20, orbit.distance * factor)); redraw(); };
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, e); });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => fingers.delete(e.pointerId));
  canvas.addEventListener("pointermove", (e) => {
    const before = fingers.get(e.pointerId);
    if (!before) return;
    const dx = e.clientX - before.clientX, dy = e.clientY - before.clientY;
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
  });
  document.getElementById("reset-view").addEventListener("click", () => { orbit = { ...start, target: start.target.slice() }; redraw(); });
  for (const id of ["point-size", "min-views", "min-confidence", "colour-mode", "show-cameras"]) document.getElementById(id).addEventListener("input", redraw);
  window.addEventListener("resize", redraw);
  draw();
})();
