(function () {
  "use strict";
  var root = document.documentElement, button = document.getElementById("theme");
  var narrow = matchMedia("(max-width: 640px)"), dark = matchMedia("(prefers-color-scheme: dark)");
  var touch = matchMedia("(pointer: coarse)").matches;
  function stored(value) {  // a page opened from a file may be refused storage
    try { if (value) localStorage.setItem("wellcond-theme", value); return localStorage.getItem("wellcond-theme"); }
    catch (error) { return null; }
  }
  function isDark() {
    var chosen = root.getAttribute("data-theme");
    return chosen ? chosen === "dark" : dark.matches;
  }
  function colour(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }
  function scale(name) {  // the stops of a colour scale, evenly spread
    var stops = colour("--scale-" + name).split(/\s+/);
    return stops.map(function (stop, i) { return [i / (stops.length - 1), stop]; });
  }
  function isObject(value) { return value && typeof value === "object" && !Array.isArray(value); }
  function overlay(below, above) {
    Object.keys(above).forEach(function (key) {
      below[key] = isObject(below[key]) && isObject(above[key]) ? overlay(below[key], above[key]) : above[key];
    });
    return below;
  }

  // What is chosen above a figure: {name of the choice: number of the option}.
  function chosen(place) {
    var state = {};
    controls(place).forEach(function (control) {
      var pressed = control.querySelector("[aria-pressed=true]");
      state[control.dataset.choice] = pressed ? +pressed.dataset.option : +control.value;
    });
    return state;
  }
  function controls(place) {
    return Array.from(place.closest("figure").querySelectorAll("[data-choice]"));
  }
  function holds(when, state) {
    return Object.keys(when || {}).every(function (name) { return state[name] === undefined || state[name] === when[name]; });
  }

  function themedTrace(trace) {
    if (trace.type !== "heatmap") return trace;
    trace.colorscale = scale(trace.colorscale || "more");
    trace.colorbar = Object.assign({ thickness: 10, outlinewidth: 0, len: 1, tickcolor: colour("--line") }, trace.colorbar,
      narrow.matches ? { orientation: "h", x: 0.5, xanchor: "center", y: 0, yanchor: "bottom", yref: "container" } : {});
    if (narrow.matches) delete trace.texttemplate;  // no room for a number in a cell
    return trace;
  }
  function themed(layout) {
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = Object.assign({ family: getComputedStyle(document.body).fontFamily, size: 13 }, layout.font, { color: colour("--ink") });
    layout.hoverlabel = { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") }, align: "left" };
    layout.margin = Object.assign({ l: 64, r: 12, t: 12, b: 48 }, layout.margin, narrow.matches ? { l: 40, r: 6 } : {});
    layout.legend = Object.assign({ orientation: "h", x: 0, itemwidth: 30 }, layout.legend,
      narrow.matches ? { y: 0, yanchor: "bottom", yref: "container", font: { size: 12 } } : { y: 1.02, yanchor: "bottom" });
    layout.autosize = true;
    if (touch) layout.dragmode = false;  // a finger on a chart scrolls the page
    Object.keys(layout).concat(["xaxis", "yaxis"]).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) {
        layout[key] = Object.assign({ automargin: true, zeroline: false }, layout[key],
          { gridcolor: colour("--line"), linecolor: colour("--line"), tickcolor: colour("--line") });
        if (layout[key].title) layout[key].title = overlay({ font: { size: 13 }, standoff: 10 }, layout[key].title);
        if (narrow.matches) {
          if (layout[key].dtick === 1 && key[0] === "x" && layout[key].type !== "log") delete layout[key].dtick;
          layout[key] = Object.assign({ tickangle: 0, tickfont: { size: 12 } }, layout[key]);
        }
      }
    });
    return layout;
  }
  function drawOne(script) {
    var figure = JSON.parse(script.textContent), place = document.getElementById(script.dataset.for), state = chosen(place);
    var data = figure.data.filter(function (trace) { return holds(trace.when, state); });
    figure.layouts.forEach(function (part) { if (holds(part.when, state)) overlay(figure.layout, part.layout); });
    Plotly.react(place, data.map(themedTrace), themed(figure.layout),
      { responsive: true, displaylogo: false, displayModeBar: false, showLink: false, plotlyServerURL: "" });
  }
  function draw() {
    button.textContent = isDark() ? "light" : "dark";
    if (window.Plotly) document.querySelectorAll(".plot-data").forEach(drawOne);
  }

  function listen(place, redraw) {
    controls(place).forEach(function (control) {
      var output = control.parentNode.querySelector("output");
      function changed() {
        if (output) output.textContent = control.dataset.options.split("\n")[+control.value];
        redraw();
      }
      control.addEventListener("input", changed);
      control.addEventListener("click", function (event) {
        var pressed = event.target.closest("[aria-pressed]");
        if (!pressed) return;
        control.querySelectorAll("[aria-pressed]").forEach(function (one) { one.setAttribute("aria-pressed", String(one === pressed)); });
        changed();
      });
    });
  }
  document.querySelectorAll(".plot-data").forEach(function (script) {
    listen(document.getElementById(script.dataset.for), function () { if (window.Plotly) drawOne(script); });
  });
  document.querySelectorAll(".gallery").forEach(function (gallery) {
    listen(gallery, function () {
      var state = chosen(gallery);
      gallery.querySelectorAll("[data-when]").forEach(function (picture) {
        picture.hidden = !holds(JSON.parse(picture.dataset.when), state);
      });
    });
  });
  if (stored()) root.setAttribute("data-theme", stored());
  button.addEventListener("click", function () {
    var next = isDark() ? "light" : "dark";
    stored(next);
    root.setAttribute("data-theme", next);
    draw();
  });
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", function () {  // margins of the other layout would not fit: begin anew
    if (window.Plotly) document.querySelectorAll(".plot").forEach(function (place) { Plotly.purge(place); });
    draw();
  });
  draw();
})();
