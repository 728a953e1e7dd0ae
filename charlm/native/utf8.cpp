// UTF-8 to code points, without the GIL.

#include <cstddef>
#include <cstdint>
#include <cstring>

using Index = std::ptrdiff_t;

struct Arguments {
  Index size, threads;        // `size` in bytes; `threads` is not used
  const std::uint8_t* bytes;  // read [size]
  std::uint32_t* codes;       // written [size], the first counts[1] of them; overlaps no other
  Index* counts;              // written [2]: bytes up to the end or the first incomplete or invalid sequence, and
                              // their number of code points
};

namespace {

// The form of a sequence of 1 to 4 bytes. Its bytes fill a 32-bit word from the top; other bytes may follow below.
struct Sequence {
  std::uint32_t below;    // bits of the word below the sequence
  std::uint32_t marks;    // mask of the bits that mark first and continuation bytes
  std::uint32_t marked;   // the required value of these bits
  std::uint32_t payload;  // mask of the bits of the code point
  std::uint32_t least;    // the smallest code point that needs this many bytes
};

constexpr Sequence ONE{24, 0x80000000, 0x00000000, 0x7f000000, 0};
constexpr Sequence TWO{16, 0xe0c00000, 0xc0800000, 0x1f3f0000, 0x80};
constexpr Sequence THREE{8, 0xf0c0c000, 0xe0808000, 0x0f3f3f00, 0x800};
constexpr Sequence FOUR{0, 0xf8c0c0c0, 0xf0808080, 0x073f3f3f, 0x10000};
constexpr Sequence NONE{24, 0, 1, 0, 0};  // matches no word

// Indexed by the five highest bits of the first byte.
constexpr Sequence SEQUENCES[32] = {
    ONE,  ONE,  ONE,  ONE,  ONE,  ONE,  ONE,  ONE,  ONE, ONE, ONE, ONE, ONE,   ONE,   ONE,  ONE,
    NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, TWO, TWO, TWO, TWO, THREE, THREE, FOUR, NONE,
};

// Length in bytes of the sequence that `first` begins. The constant has one nibble for each value of the upper four
// bits, which is faster than a table; the loop waits for this length to find the next sequence.
inline Index length_of(std::uint8_t first) {
  return 0x4322'1111'1111'1111 >> (first >> 4) * 4 & 0xf;
}

// The next four bytes as a word; bytes beyond the end are zero.
inline std::uint32_t next_word(const std::uint8_t* at, Index left) {
  std::uint8_t bytes[4] = {};
  if (left >= 4)
    std::memcpy(bytes, at, 4);
  else
    std::memcpy(bytes, at, left);
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

inline bool are_ascii(const std::uint8_t* eight) {
  std::uint64_t word;
  std::memcpy(&word, eight, 8);
  return !(word & 0x8080808080808080);
}

// Decode one sequence; false if it is invalid or incomplete. No branch depends on the length of the sequence: it varies
// from character to character, so the CPU could not predict it.
inline bool decode(std::uint32_t word, std::uint32_t* to) {
  const Sequence& sequence = SEQUENCES[word >> 27];
  const std::uint32_t bits = (word & sequence.payload) >> sequence.below;
  const std::uint32_t code = (bits >> 6 & 0x1c0000) | (bits >> 4 & 0x3f000) | (bits >> 2 & 0xfc0) | (bits & 0x7f);
  *to = code;
  const bool is_surrogate = code >> 11 == 0xd800 >> 11;
  return (word & sequence.marks) == sequence.marked && code >= sequence.least && code <= 0x10ffff && !is_surrogate;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void utf8_decode(const Arguments* a) {
  const std::uint8_t *at = a->bytes, *const end = at + a->size;
  std::uint32_t* out = a->codes;
  while (at < end) {
    if (end - at >= 8 && are_ascii(at)) {
      for (int i = 0; i < 8; i++) out[i] = at[i];
      at += 8;
      out += 8;
    } else if (decode(next_word(at, end - at), out)) {
      at += length_of(*at);
      out++;
    } else {
      break;
    }
  }
  a->counts[0] = at - a->bytes;
  a->counts[1] = out - a->codes;
}
