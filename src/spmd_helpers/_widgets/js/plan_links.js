// What a collective costs, by the links that its groups cross: mirrors _time/links.py.

const planMany = 2 ** 40; // bytes that the speed of a way is asked with

/** The lane, and of each way to send [seconds before, seconds for each byte]. */
export function planWays(kind, group, chips, rates) {
  const sent = planRounded(planSent(kind, group.size) * planMany);
  const { lane, start, sending } = (group.directions ? planTorus : planHosts)(kind, group, sent, chips, rates);
  const way = ([more, share]) => [start + more, sending / share / planMany];
  return { lane, ways: planBetween(kind, group).map(way) };
}

// Bytes that a device sends of the bytes that an exchange is named with.
function planSent(kind, n) {
  if (kind === "collective-permute") return 1;
  return kind === "all-reduce" ? (2 * (n - 1)) / n : (n - 1) / n;
}

// A half is rounded to even, as Python does.
function planRounded(x) {
  const whole = Math.round(x);
  return whole - x === 0.5 && whole % 2 ? whole - 1 : whole;
}

function planRate({ links }, link, kind) {
  return links[`${link} ${kind}`] ?? links[`${link} `] ?? 0;
}

// Between many hosts of GPUs: seconds more than over a few, and the share of the links' speed.
function planBetween(kind, { hosts, size }) {
  const { few, rings, trees, ringsOf } = spmdPlan.links;
  if (!hosts || hosts.length <= few || !ringsOf.includes(kind)) return [[0, 1]];
  const more = hosts.length - few;
  const inside = more * (Math.floor(size / hosts.length) - 1);
  const rounds = kind === "all-reduce" ? 2 : 1;
  const ways = rings.map(([near, far, share]) => [rounds * (inside * near + more * far), share]);
  if (rounds === 1) return ways;
  const bits = (n) => n.toString(2).length;
  const levels = bits(hosts.length) - bits(few);
  return [...ways, ...trees.map(([, far, share]) => [2 * levels * far, share])];
}

function planHosts(kind, { hosts, size }, sent, chips, rates) {
  const [pair, few, many] = spmdPlan.links.near;
  const link = size < 4 || kind === "collective-permute" ? pair : size < 8 ? few : many;
  const within = sent / planRate(rates, link, kind);
  if (hosts.length === 1) return { lane: "nvlink", start: rates.start[link], sending: within };
  let far = sent;
  if (kind === "all-to-all") far = (planMany * (size - hosts[0])) / size;
  else if (kind !== "collective-permute") far = sent / hosts[0];
  let start = rates.start.nvlink + planRoundTrips(kind, hosts.length, size) * rates.start.network;
  if (kind === "all-to-all") {
    const { few: most, largeMessageS } = spmdPlan.links;
    start += ((Math.max(hosts.length - most, 0) * size) / hosts.length) * largeMessageS;
  }
  return { lane: "network", start, sending: Math.max(within, far / planRate(rates, "network", kind)) };
}

// Round trips between hosts before a collective has sent, over up to a few hosts.
function planRoundTrips(kind, hosts, size) {
  if (kind === "collective-permute") return 1;
  const near = size / hosts;
  const few = near * Math.min(hosts, spmdPlan.links.few);
  if (kind === "all-to-all") return few - near;
  return ((kind === "all-reduce" ? 2 : 1) * (few - 1)) / near;
}

function planTorus(kind, { directions, size }, sent, { torus, chip }, rates) {
  const across = directions
    .map((one) => torus[one])
    .filter((count) => count > 1)
    .map((count) => [count, count % (spmdPlan.chips[chip].links === 4 ? 16 : 4) === 0]);
  if (!across.length) across.push([size, false]);
  let [ways, hops] = [0, 0];
  for (const [count, isClosed] of across) {
    ways += isClosed && count > 2 ? 2 : 1;
    hops += isClosed ? Math.floor(count / 2) : count - 1;
  }
  const link = planRate(rates, "ici", kind);
  let sending = sent / (ways * link);
  if (kind === "collective-permute") sending = sent / link;
  else if (kind === "all-to-all") sending = (planMany * Math.max(...across.map(planMiddle))) / link;
  return { lane: "ici", start: hops * rates.start.ici, sending };
}

// What the busiest link of a direction carries in an all-to-all, in arrays of one device.
function planMiddle([count, isClosed]) {
  const half = (Math.floor(count / 2) * Math.ceil(count / 2)) / count;
  return isClosed && count > 2 ? half / 2 : half;
}
