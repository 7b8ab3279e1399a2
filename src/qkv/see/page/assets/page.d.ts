// Types for browser features that this version of TypeScript does not know yet, and for properties that a page adds
// to its window.

declare module "*.wasm" {
  const code: string; // in base64
  export default code;
}

declare class DecompressionStream {
  constructor(format: string);
  readable: ReadableStream<Uint8Array>;
  writable: WritableStream<Uint8Array>;
}

interface Array<T> {
  at(position: -1): T; // the last element; its type is T without undefined, so the array must not be empty
  findLast(wanted: (value: T, index: number, array: T[]) => unknown): T | undefined;
  findLastIndex(wanted: (value: T, index: number, array: T[]) => unknown): number;
}

interface Float64Array {
  at(position: number): number | undefined;
  toSorted(): Float64Array;
  findLastIndex(wanted: (value: number) => unknown): number;
}

interface Float32Array {
  toSorted(): Float32Array;
}

interface String {
  toWellFormed(): string;
}

interface Element {
  checkVisibility(options?: { visibilityProperty?: boolean; opacityProperty?: boolean }): boolean;
}

interface Api {
  where?: string;
  receivePiece?(): void;
  model: Promise<import("./engine/model.js").Sizes & { name: string; words: string[]; exact?: boolean }>;
  models?: Record<string, Api["model"]>;
  downloads?: Record<string, import("./engine/download.js").Download>;
  run(text: string, edits?: import("./engine/edits.js").Edit[], options?: { model?: string; at?: number[]; layers?: number[]; most?: number; lens?: boolean; signal?: AbortSignal }): Promise<import("./engine/api.js").Run>;
  generate?(
    text: string,
    options?: { model?: string; max?: number; temperature?: number; top_k?: number | null; seed?: number; begun?: number[]; signal?: AbortSignal; onpart?: (part: import("./engine/api.js").Chosen) => void },
    edits?: import("./engine/edits.js").Edit[],
  ): Promise<import("./engine/api.js").Written>;
  sweep(
    text: string,
    edits: import("./engine/edits.js").Edit[],
    onpart: (part: { layer: number; head: number; resid: Float32Array; logits: Float32Array }) => void,
    options?: { model?: string; at?: number[]; most?: number; signal?: AbortSignal },
  ): Promise<void>;
  findings?: { claim: string; holds: boolean; before: [string, number][]; after: [string, number][] }[];
  parameters?(names: string[], rows?: Record<string, number[]>, options?: { model?: string }): Promise<Record<string, Float32Array>>;
}

declare var qkv: Api;
