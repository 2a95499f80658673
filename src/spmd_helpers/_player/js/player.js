(() => {
  const FLIGHT = 650;
  const PAUSE = 700;
  const LONGEST = 6500; // a frame that is read, in ms
  const A_LETTER = 35;

  function button(words, press) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.addEventListener("click", press);
    return made;
  }

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  const words = (frame) => frame.querySelector(":scope > p");

  function wake(root) {
    root.dataset.awake = "";
    const frames = [...root.querySelectorAll(".spmd-play-frame")];
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    const last = frames.length - 1;
    const first = Number(root.dataset.first);
    let now = 0;
    let run = 0; // what runs has this number; another number ends it
    let plays = false;

    const bar = element("div", { className: "spmd-play-bar" });
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", root.dataset.group);
    const play = button("▶ Play", () => (plays ? stop() : start()));
    const back = button("Back", () => show(now - 1));
    const step = button("Step", forward);
    const place = element("span");
    const status = element("p", { className: "spmd-play-status" });
    status.setAttribute("role", "status");
    const choices = JSON.parse(root.dataset.choices ?? "[]").map((name, i) => button(name, () => show(i)));
    const sliders = JSON.parse(root.dataset.sliders ?? "[]").map(slider);
    if (sliders.length) bar.append(...sliders.map((one) => one.label), status);
    else if (choices.length) bar.append(...choices, status);
    else bar.append(play, back, step, place, status);

    const item = (frame) => element("li", { textContent: words(frame).textContent });
    const all = element("details", {}, element("summary", { textContent: "All steps in words" }), element("ol", {}, ...frames.map(item)));
    root.querySelector(".spmd-play-frames").after(bar, all);

    // The last slider changes from each frame to the next.
    function slider([name, values]) {
      const input = element("input", { type: "range", min: 0, max: values.length - 1, step: 1 });
      const output = element("b"); // the input says it, too
      output.setAttribute("aria-hidden", true);
      input.addEventListener("input", () => show(sliders.reduce((number, one) => number * one.values.length + Number(one.input.value), 0)));
      return { values, input, output, label: element("label", {}, element("span", { textContent: name }), input, output) };
    }

    function set() {
      let rest = now;
      for (const { values, input, output } of [...sliders].reverse()) {
        input.value = rest % values.length;
        rest = Math.floor(rest / values.length);
        output.textContent = values[input.value];
        input.setAttribute("aria-valuetext", values[input.value]);
      }
      choices.forEach((choice, i) => choice.setAttribute("aria-pressed", i === now));
    }

    function put(number) {
      now = Math.max(0, Math.min(last, number));
      frames.forEach((frame, i) => frame.toggleAttribute("data-now", i === now));
      back.disabled = now === 0;
      step.disabled = now === last;
      place.textContent = `${now + first} of ${last + first}`;
      set();
    }

    function label() {
      play.textContent = plays ? "❚❚ Pause" : now === last ? "↺ Again" : "▶ Play";
    }

    function rest() {
      run += 1;
      plays = false;
      root.querySelectorAll(".spmd-play-flight").forEach((layer) => layer.remove());
      root.querySelectorAll("[data-leaves][visibility]").forEach((cell) => cell.removeAttribute("visibility"));
    }

    function stop() {
      rest();
      label();
    }

    function show(number) {
      const focused = document.activeElement;
      rest();
      put(number);
      label();
      tell();
      if (focused?.disabled) play.focus();
    }

    function tell() {
      status.textContent = words(frames[now]).textContent;
    }

    function pause(number) {
      if (root.dataset.pace !== "read") return calm.matches ? 2 * PAUSE : PAUSE;
      return Math.min(LONGEST, 2 * PAUSE + A_LETTER * words(frames[number]).textContent.length);
    }

    const wait = (time) => new Promise((done) => setTimeout(done, time));

    // The cells that are sent in the next hop go to where they are received.
    async function fly() {
      const cells = [...frames[now].querySelectorAll("[data-to]")];
      if (calm.matches || !cells.length) return;
      const layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
      layer.setAttribute("class", "spmd-play-flight");
      const flights = cells.map((cell) => {
        const flying = cell.cloneNode(true);
        layer.append(flying);
        if ("leaves" in cell.dataset) cell.setAttribute("visibility", "hidden");
        return flying;
      });
      frames[now].querySelector("svg").append(layer);
      const ends = flights.map((flying) => {
        const [x, y] = flying.dataset.to.split(" ");
        const path = [{ transform: "none" }, { transform: `translate(${x}px, ${y}px)` }];
        return flying.animate(path, { duration: FLIGHT, easing: "ease-in-out", fill: "forwards" }).finished;
      });
      await Promise.allSettled(ends);
    }

    async function forward() {
      const mine = (rest(), run);
      label();
      await fly();
      if (mine === run) show(now + 1);
    }

    async function start() {
      rest();
      if (now === last) put(0);
      const mine = run;
      plays = true;
      label();
      while (now < last) {
        await fly();
        if (mine !== run) return;
        root.querySelectorAll(".spmd-play-flight").forEach((layer) => layer.remove());
        root.querySelectorAll("[data-leaves][visibility]").forEach((cell) => cell.removeAttribute("visibility"));
        put(now + 1);
        tell();
        await wait(pause(now));
        if (mine !== run) return;
      }
      stop();
    }

    bar.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.type === "range") return;
      const go = { ArrowLeft: () => show(now - 1), ArrowRight: () => now < last && (choices.length ? show(now + 1) : forward()), Home: () => show(0), End: () => show(last) }[event.key];
      if (!go) return;
      event.preventDefault();
      go();
      choices[now]?.focus();
    });

    root.classList.add("spmd-play-on");
    all.open = calm.matches;
    put(calm.matches ? last : 0);
    label();
  }

  document.querySelectorAll(".spmd-play:not([data-awake])").forEach(wake);
})();
