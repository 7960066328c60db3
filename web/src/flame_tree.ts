// Trees of call paths with sums of their own: reading, leaving levels out, turning upside down.

import type { Column, Name } from "./data";

export interface Frame {
  name: Name;
  /** Sums of the frame itself, without those of its callees. */
  own: number[];
  children: Frame[];
}

interface Numbers {
  numbers(column: Column): Float64Array;
}

interface Columns {
  names: Name[];
  name: Column;
  depth: Column;
}

/** Reads a tree in depth-first order; `sums` are the columns of `own`. */
export function read(flame: Columns, sums: Column[], opened: Numbers): Frame[] {
  const name = opened.numbers(flame.name);
  const depth = opened.numbers(flame.depth);
  const columns = sums.map((column) => opened.numbers(column));
  const roots: Frame[] = [];
  const stack: Frame[] = [];
  for (let i = 0; i < name.length; i++) {
    const frame: Frame = { name: flame.names[name[i]], own: columns.map((column) => column[i]), children: [] };
    stack.length = depth[i];
    (depth[i] ? stack[depth[i] - 1].children : roots).push(frame);
    stack.push(frame);
  }
  return roots;
}

/** Sums of a frame with all below it. */
export function total(frame: Frame): number[] {
  const sum = [...frame.own];
  for (const child of frame.children) total(child).forEach((value, i) => (sum[i] += value));
  return sum;
}

/** A tree without some kinds of frames: their time goes to the caller, their callees move up. */
export function without(frame: Frame, hidden: Set<string>): Frame[] {
  const children = frame.children.flatMap((child) => without(child, hidden));
  if (hidden.has(frame.name.kind)) return children;
  const own = [...frame.own];
  for (const gone of frame.children.filter((child) => hidden.has(child.name.kind))) {
    gone.own.forEach((value, i) => (own[i] += value));
  }
  return [{ name: frame.name, own, children: merge(children) }];
}

/** Equal neighbours as one. */
export function merge(frames: Frame[]): Frame[] {
  const byName = new Map<string, Frame>();
  for (const frame of frames) {
    const key = `${frame.name.kind}\0${frame.name.text}`;
    const known = byName.get(key);
    if (!known) byName.set(key, { ...frame, own: [...frame.own] });
    else {
      frame.own.forEach((value, i) => (known.own[i] += value));
      known.children = known.children.concat(frame.children);
    }
  }
  const merged = [...byName.values()];
  for (const frame of merged) frame.children = merge(frame.children);
  return merged;
}

const CALLERS = 12;

/** From frames with own time to their callers; `value` says which time. */
export function inverted(roots: Frame[], value: (frame: Frame) => number): Frame[] {
  const top = new Map<string, Frame>();
  const visit = (frame: Frame, callers: Frame[]): void => {
    if (value(frame) > 0) add(top, frame, callers);
    const chain = [frame, ...callers];
    for (const child of frame.children) visit(child, chain);
  };
  for (const root of roots) visit(root, []);
  return [...top.values()];
}

function add(top: Map<string, Frame>, frame: Frame, callers: Frame[]): void {
  const key = frame.name.text;
  const empty = (name: Name): Frame => ({ name, own: frame.own.map(() => 0), children: [] });
  let at = top.get(key);
  if (!at) top.set(key, (at = empty(frame.name)));
  for (const caller of callers.slice(0, CALLERS)) {
    let next: Frame | undefined = at.children.find((child) => child.name.text === caller.name.text);
    if (!next) at.children.push((next = empty(caller.name)));
    at = next;
  }
  frame.own.forEach((sum, i) => (at.own[i] += sum));
}
