// The layouts of the story panel, classes by its size. ComfyUI takes up to 72 pixels of its height while a job runs: a
// layout is left at another size than it is entered, and none changes under a hand.

/**
 * The sizes in pixels at which a layout is entered and left: a small one is entered below `enter` and left from `leave` on,
 * a large one is entered from `enter` on and left below `leave`.
 * @typedef {{side: "width" | "height", enter: number, leave: number}} Bounds
 */

/** By class. @type {Record<string, Bounds>} */
const LAYOUTS = {
  "hf-story-low": { side: "height", enter: 400, leave: 480 },
  "hf-story-lowest": { side: "height", enter: 260, leave: 340 },
  "hf-story-high": { side: "height", enter: 740, leave: 660 },
  "hf-story-narrow": { side: "width", enter: 680, leave: 720 },
};

/**
 * Whether a panel of this size has a layout, which it had before or not.
 * @param {number} size
 * @param {boolean} before
 * @param {Bounds} bounds
 */
export function hasLayout(size, before, { enter, leave }) {
  const bound = before ? leave : enter;
  return enter < leave ? size < bound : size >= bound;
}

/** Keeps the classes of a panel's grid those of its size. */
export class Layouts {
  #grid;
  /** @type {DOMRectReadOnly | null} */
  #size = null;
  #isHeld = false; // whether a pointer is pressed in the panel

  /** @param {HTMLElement} root the panel @param {HTMLElement} grid */
  constructor(root, grid) {
    this.#grid = grid;
    root.addEventListener("pointerdown", () => this.#hold(true), { capture: true });
    for (const end of ["pointerup", "pointercancel", "dragend"])
      window.addEventListener(end, () => this.#hold(false), { capture: true });
    new ResizeObserver(([{ contentRect }]) => {
      this.#size = contentRect;
      this.#fit();
    }).observe(root);
  }

  /** @param {boolean} isHeld */
  #hold(isHeld) {
    this.#isHeld = isHeld;
    this.#fit();
  }

  #fit() {
    if (this.#isHeld || !this.#size) return;
    const { classList } = this.#grid;
    for (const [name, bounds] of Object.entries(LAYOUTS))
      classList.toggle(name, hasLayout(this.#size[bounds.side], classList.contains(name), bounds));
  }
}
