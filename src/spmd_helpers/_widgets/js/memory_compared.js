import { countMemory, memoryDefaults } from "./memory_state.js";
import { bytesWords, fixedWords } from "./words.js";

/** The stored measurements, each beside what is counted for it here. */
export function memoryCompared() {
  return spmdMeasured.rows.map((row) => {
    const set = { ...memoryDefaults, ...row.state };
    const { found } = countMemory(set);
    const measured = BigInt(row.bytes);
    const off = found.total_bytes - measured;
    const size = fixedWords(100n * (off < 0n ? -off : off), measured, 0n);
    return {
      name: row.name,
      where: `${row.devices} × ${row.device}`,
      counted: bytesWords(found.total_bytes),
      bytes: `${found.total_bytes}`,
      measured: bytesWords(measured),
      off: `${off < 0n ? "−" : "+"}${size} %`,
      verdict: row.refused ? "rejected" : "accepted",
      by: `jax ${row.jax}, ${row.date}`,
      set,
    };
  });
}

/** How near all stored programs are, in words. */
export function memoryNear() {
  const said = ({ within, of, least, most }) =>
    `${within} of ${of} stored programs are within a tenth (${least} to ${most})`;
  const { tpu, gpu } = spmdMeasured.near;
  return `Against the TPU compiler ${said(tpu)}, against GPUs ${said(gpu)}.`;
}
