// The likeliest ids.

/** How many are shown. */
export const LIKELIEST = 5;

/** The `count` likeliest ids, the likeliest first; of equal ones the first comes first. */
export function likeliestIds(shares, count) {
  const ids = [];
  shares.forEach((share, id) => {
    if (ids.length === count && share <= shares[ids[count - 1]]) return;
    let index = ids.length;
    while (index > 0 && share > shares[ids[index - 1]]) index--;
    ids.splice(index, 0, id);
    if (ids.length > count) ids.pop();
  });
  return ids;
}
