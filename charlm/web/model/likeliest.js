// The likeliest ids.

/** How many are shown. */
export const LIKELIEST = 5;

/** The `count` likeliest ids, the likeliest first; of equal ones the first comes first. */
export function likeliestIds(shares, count) {
  const found = [];
  shares.forEach((share, id) => {
    if (found.length === count && share <= shares[found[count - 1]]) return;
    let place = found.length;
    while (place > 0 && share > shares[found[place - 1]]) place--;
    found.splice(place, 0, id);
    if (found.length > count) found.pop();
  });
  return found;
}
