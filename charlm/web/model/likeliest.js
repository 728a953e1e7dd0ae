// The likeliest ids.

/** How many are shown. */
export const LIKELIEST = 5;

/** The `count` likeliest ids, the likeliest first; of equal ones the first comes first. */
export function likeliestIds(shares, count) {
  const ids = [];
  shares.forEach((share, id) => {
    if (ids.length === count && share <= shares[ids[count - 1]]) return;
    let place = ids.length;
    while (place > 0 && share > shares[ids[place - 1]]) place--;
    ids.splice(place, 0, id);
    if (ids.length > count) ids.pop();
  });
  return ids;
}
