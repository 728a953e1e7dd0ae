/* A character-level language model, written by charlm export.
 *
 *     cc -O3 model.c -lm -o model
 *     ./model --prompt "Once" --length 500 --temperature 0.7 --seed 1
 *     ./model --score < text
 *
 * It needs libm and a compiler for C99, C11 or C++17. A program of your own includes this file after
 * `#define CHARLM_NO_MAIN`, or is linked with it (cc -DCHARLM_NO_MAIN -c). It calls lm_open once, then lm_step for the id
 * of each character, and lm_sample; lm_id and lm_character turn characters into ids and back. All names begin with that
 * of the file, so that a program may have several models. Nothing is allocated after lm_open; free(model) ends it.
 *
 * Model: {{name}}, {{weights}}
 *
 * How it works. A character is a number, its id. lm_step turns it into x, {{input}}, and gives x to
 * {{layers}}. A layer has a state, which it remembers from character to character, and gives its output h
 * to what is above it. The last h gives the logits, W h + b: a number for each character that could come next. The
 * probability of a character is exp(its logit), divided by the sum of all of these. One step of a layer:
 *{{equations}}
 *
 * (W v is a matrix times a vector, ⊙ a product unit by unit, σ(a) = 1 / (1 + exp(-a)).)
 */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LM_V {{V}} /* characters that the model knows; with bytes, all 256 */
#define LM_E {{E}} /* numbers of x */
#define LM_H {{H}} /* units of a layer */
#define LM_BYTES {{bytes}} /* whether the ids are bytes, not characters */
#define LM_RECORD_END ({{record_end}}) /* the id of the end of a line or record, if each is a text of its own; or -1 */
#define LM_FIRST {{first}} /* the id that is read where there is no prompt */
#define LM_OTHER ({{other}}) /* the id of all characters that have none; -1: the model does not know them */
#define LM_END {{separator_bytes}} /* bytes of what ends a record in a text */
#ifdef __cplusplus
#define LM_RESTRICT __restrict
#else
#define LM_RESTRICT restrict
#endif

typedef {{weight}} lm_weight; /* times the scale of its row */

/* y = W x. W has one scale for each row, and its values stand column by column, so that a compiler can multiply many
 * rows at once. Columns whose x is 0 cost nothing. */
static void lm_multiply(float *LM_RESTRICT y, const lm_weight *LM_RESTRICT w, const float *LM_RESTRICT scale, int rows,
                        int columns, const float *LM_RESTRICT x)
{
    for (int r = 0; r < rows; r++) y[r] = 0;
    int c = 0;
    for (; c + 4 <= columns; c += 4) {
        const float x0 = x[c], x1 = x[c + 1], x2 = x[c + 2], x3 = x[c + 3];
        const lm_weight *LM_RESTRICT a = w + (size_t)c * rows, *LM_RESTRICT b = a + rows;
        const lm_weight *LM_RESTRICT d = b + rows, *LM_RESTRICT e = d + rows;
        if (x0 == 0 && x1 == 0 && x2 == 0 && x3 == 0) continue;
        for (int r = 0; r < rows; r++) y[r] += (a[r] * x0 + b[r] * x1) + (d[r] * x2 + e[r] * x3);
    }
    for (; c < columns; c++)
        for (int r = 0; r < rows; r++) y[r] += w[(size_t)c * rows + r] * x[c];
    for (int r = 0; r < rows; r++) y[r] *= scale[r];
}

{{helpers}}

{{structs}}

typedef struct {
    float logit;
    int id;
} lm_choice;

typedef struct lm_model {
{{fields}}
    float x[LM_E];      /* the input of the first layer */
    float y[LM_H];      /* the output of a layer */
    float logits[LM_V]; /* of the next character */
    lm_choice order[LM_V];
    double cumulated[LM_V];
    uint32_t random[624]; /* the Mersenne Twister MT19937 (Matsumoto & Nishimura 1998) */
    int used;             /* how many of its numbers are used up */
} lm_model;

/* The model, at the beginning of a text; NULL if there is not enough memory. See the end of this file. */
lm_model *lm_open(void);

/* Begin a text: set the initial state of all layers. */
void lm_begin(lm_model *m)
{
{{begins}}
}

/* Read the character `id`. Returns the logits of the next one, which stay valid until the next step. */
const float *lm_step(lm_model *m, int id)
{
    if (id == LM_RECORD_END) lm_begin(m);
{{steps}}
    for (int v = 0; v < LM_V; v++) m->logits[v] += m->output_bias[v];
    return m->logits;
}

/* The bits that the model needs for this id as the next character: -log2 of its probability. */
double lm_bits(const lm_model *m, int id)
{
    double largest = m->logits[0], sum = 0;
    for (int v = 1; v < LM_V; v++)
        if (m->logits[v] > largest) largest = m->logits[v];
    for (int v = 0; v < LM_V; v++) sum += exp(m->logits[v] - largest);
    return (largest + log(sum) - m->logits[id]) / log(2.0);
}

/* Start the random numbers: the same seed gives the same text, that of `charlm sample --seed`. */
void lm_seed(lm_model *m, uint64_t seed)
{
    m->random[0] = (uint32_t)seed;
    for (int i = 1; i < 624; i++)
        m->random[i] = 1812433253u * (m->random[i - 1] ^ (m->random[i - 1] >> 30)) + (uint32_t)i;
    m->used = 624;
}

static uint32_t lm_random_bits(lm_model *m)
{
    uint32_t *s = m->random;
    if (m->used == 624) {
        for (int i = 0; i < 624; i++) {
            const uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % 624] & 0x7fffffffu);
            s[i] = s[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        m->used = 0;
    }
    uint32_t y = s[m->used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* The likelier character first; of equal ones the one with the smaller id. */
static int lm_compared(const void *first, const void *second)
{
    const lm_choice *a = (const lm_choice *)first, *b = (const lm_choice *)second;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id - b->id;
}

/* Draw the id of the next character from the logits of the last step; -1 if one of them is not finite.
 * temperature: 0 takes the likeliest. top_k: among so many of the likeliest; 0 for all. top_p: among the likeliest that
 * have this probability together; 1 for all. */
int lm_sample(lm_model *m, double temperature, int top_k, double top_p)
{
    const double high = lm_random_bits(m) & 0x1fffff, low = lm_random_bits(m);
    const double draw = (high * 4294967296.0 + low) / 9007199254740992.0;
    const int count = top_k > 0 && top_k < LM_V ? top_k : LM_V;
    double sum = 0;
    for (int v = 0; v < LM_V; v++) {
        if (!isfinite(m->logits[v])) return -1;
        m->order[v].logit = v == LM_OTHER ? -1e30f : m->logits[v];
        m->order[v].id = v;
    }
    qsort(m->order, LM_V, sizeof m->order[0], lm_compared);
    if (temperature == 0) return m->order[0].id;
    for (int k = 0; k < count; k++)
        m->cumulated[k] = sum += exp(((double)m->order[k].logit - m->order[0].logit) / temperature);
    int last = 0, drawn = 0;
    while (last < count - 1 && m->cumulated[last] / sum < top_p) last++;
    while (drawn < last && m->cumulated[drawn] / sum <= draw * (m->cumulated[last] / sum)) drawn++;
    return m->order[drawn].id;
}

{{characters}}

/* The code point of an id. */
uint32_t lm_character(int id)
{
    return lm_characters[id];
}

/* The id of a character, given its code point; -1: the model does not know it. */
int lm_id(uint32_t code)
{
    for (int v = 0; v < LM_V; v++)
        if (lm_characters[v] == code) return v;
    return LM_OTHER;
}

#ifndef CHARLM_NO_MAIN

/* What ends a record in a text. The model reads it as one character, LM_RECORD_END. */
static const unsigned char lm_separator[LM_END] = { {{separator}} };

/* Letters that Unicode writes in two ways, of which the model knows one: the letter, and the two characters that mean the
 * same; the second is 0 if one does. */
static const long lm_forms[][3] = {
{{forms}}
};

/* What lm_next_code returns in place of a code point. */
enum { LM_TEXT_ENDS = -1, LM_RECORD_ENDS = -2 };

/* Bytes of a text: a string, or standard input. */
typedef struct {
    const unsigned char *string; /* NULL: standard input */
    int ahead[LM_END + 1];       /* the next bytes; -1 at the end */
    long position;               /* how many characters were read */
    long waiting[16];            /* code points that were read ahead, the next one last */
    int count;                   /* how many these are */
} lm_text;

static int lm_read_byte(lm_text *t)
{
    if (!t->string) return getchar();
    return *t->string ? *t->string++ : -1;
}

static int lm_next_byte(lm_text *t)
{
    const int byte = t->ahead[0];
    memmove(t->ahead, t->ahead + 1, LM_END * sizeof t->ahead[0]);
    t->ahead[LM_END] = lm_read_byte(t);
    const int joins = LM_RECORD_END >= 0 && !memchr(lm_separator, '\r', LM_END);
    if (joins && t->ahead[LM_END - 1] == '\r' && t->ahead[LM_END] == '\n') {
        t->ahead[LM_END - 1] = '\n';
        t->ahead[LM_END] = lm_read_byte(t);
    }
    return byte;
}

static lm_text lm_text_of(const char *string)
{
    lm_text text = {(const unsigned char *)string, {0}, 0, {0}, 0};
    for (int k = 0; k <= LM_END; k++) lm_next_byte(&text);
    return text;
}

static void lm_fail(const char *what, long position)
{
    fprintf(stderr, "error: %s at character %ld\n", what, position);
    exit(1);
}

/* How many of the next bytes are the end of a record. Standard input may end with a part of it. */
static int lm_end_bytes(const lm_text *t)
{
    int k = 0;
    while (k < LM_END && t->ahead[k] == lm_separator[k]) k++;
    const int is_end = k == LM_END || (t->ahead[k] < 0 && !t->string);
    return LM_RECORD_END >= 0 && is_end ? k : 0;
}

/* The next code point of a text, or byte. */
static long lm_next_code(lm_text *t)
{
    if (t->count) return t->waiting[--t->count];
    if (t->ahead[0] < 0) return LM_TEXT_ENDS;
    const int end = lm_end_bytes(t);
    for (int k = 0; k < end; k++) lm_next_byte(t);
    if (end > 0 && end < LM_END) return LM_TEXT_ENDS;
    t->position++;
    if (end > 0) return LM_RECORD_ENDS;
    const int byte = lm_next_byte(t);
    if (LM_BYTES) return byte;
    const int more = byte < 0x80 ? 0 : byte >= 0xf0 && byte < 0xf8 ? 3 : byte >= 0xe0 && byte < 0xf0 ? 2 : 1;
    uint32_t code = more ? byte & (0x3f >> more) : byte;
    if (more == 1 && (byte < 0xc2 || byte >= 0xe0)) lm_fail("found a byte that is not UTF-8", t->position);
    for (int k = 0; k < more; k++) {
        if ((t->ahead[0] & 0xc0) != 0x80 || t->ahead[0] < 0) lm_fail("found a byte that is not UTF-8", t->position);
        code = code << 6 | (lm_next_byte(t) & 0x3f);
    }
    if (more > 1 && code < (more == 2 ? 0x800u : 0x10000u)) lm_fail("found a byte that is not UTF-8", t->position);
    if (code == 0xfeff && t->position == 1) return lm_next_code(t); /* a byte order mark */
    return code;
}

static int lm_is_known(long code) { return code < 0 || lm_id((uint32_t)code) != LM_OTHER; }

/* The next id of a text; -1 at its end. Letters are read in the form of Unicode that the model knows. */
static int lm_next_id(lm_text *t)
{
    const size_t rows = sizeof lm_forms / sizeof lm_forms[0];
    long code = lm_next_code(t);
    if (code < 0) return code == LM_RECORD_ENDS ? LM_RECORD_END : -1;
    if (LM_BYTES) return (int)code;
    for (;;) { /* a letter and a mark that the model does not know are another letter */
        const long mark = lm_next_code(t);
        size_t n = lm_is_known(mark) && lm_is_known(code) ? rows : 0;
        while (n < rows && !(lm_forms[n][1] == code && lm_forms[n][2] == mark)) n++;
        if (n == rows) {
            if (mark != LM_TEXT_ENDS) t->waiting[t->count++] = mark;
            break;
        }
        code = lm_forms[n][0];
    }
    for (size_t n = 0; n < rows && !lm_is_known(code); n++) { /* the rows of the parts come after that of a letter */
        if (lm_forms[n][0] != code) continue;
        if (lm_forms[n][2]) t->waiting[t->count++] = lm_forms[n][2];
        code = lm_forms[n][1];
    }
    const int id = lm_id((uint32_t)code);
    if (id >= 0) return id;
    const char *form = code >= 0x300 && code < 0x370 ? ", part of a letter in Unicode form NFD" : "";
    fprintf(stderr, "error: found U+%04lX%s, which the model has never seen, at character %ld\n", (unsigned long)code,
            form, t->position - t->count);
    exit(1);
}

static void lm_put_character(int id)
{
    const uint32_t code = lm_characters[id];
    if (LM_BYTES || code < 0x80) {
        putchar((int)code);
        return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    putchar((int)((0xff00 >> (more + 1) & 0xff) | code >> 6 * more));
    for (int k = more - 1; k >= 0; k--) putchar((int)(0x80 | (code >> 6 * k & 0x3f)));
}

/* Write the prompt, and what the model adds to it. */
static int lm_write_text(lm_model *m, const char *prompt, long length, double temperature, int top_k, double top_p)
{
    lm_text text = lm_text_of(prompt);
    if (LM_RECORD_END >= 0 || !*prompt) lm_step(m, LM_FIRST);
    for (int id; (id = lm_next_id(&text)) >= 0;) lm_step(m, id);
    fputs(prompt, stdout);
    for (long n = 0; n < length; n++) {
        const int id = lm_sample(m, temperature, top_k, top_p);
        if (id < 0) lm_fail("found logits that are not finite", n + 1);
        if (id == LM_RECORD_END) break;
        lm_put_character(id);
        fflush(stdout);
        lm_step(m, id);
    }
    putchar('\n');
    return 0;
}

/* Read standard input, and write the mean bits of each character, given those before it. With bytes the sum over the
 * bytes of a character; the first one is given, unless it begins a line. A character begins with each byte that
 * continues none. */
static int lm_score_text(lm_model *m)
{
    lm_text text = lm_text_of(NULL);
    double bits = 0;
    long scored = 0, characters = 0;
    int id, last = LM_RECORD_END, is_given = LM_RECORD_END < 0;
    if (!is_given) lm_step(m, LM_RECORD_END);
    while ((id = lm_next_id(&text)) >= 0 || last != LM_RECORD_END) {
        if (id < 0) id = LM_RECORD_END; /* the last line has no end */
        const int begins = !LM_BYTES || (id & 0xc0) != 0x80;
        if (!is_given && (begins || characters)) {
            bits += lm_bits(m, id);
            scored++;
            characters += begins;
        }
        lm_step(m, id);
        is_given = 0;
        last = LM_RECORD_END >= 0 ? id : LM_RECORD_END;
    }
    if (!scored) lm_fail("found a text of fewer than 2 characters, which ends", text.position);
    if (!isfinite(bits)) lm_fail("found logits that are not finite", scored);
    if (LM_BYTES && LM_RECORD_END < 0) printf("%.7f bits per byte, %ld bytes; ", bits / scored, scored);
    printf("%.7f bits per character, %ld characters\n", bits / characters, characters);
    return 0;
}

int main(int count, char **words)
{
    const char *prompt = "";
    double length = 500, temperature = 0.8, top_k = 0, top_p = 1;
    uint64_t seed = 0;
    int scores = 0;
    for (int n = 1; n < count; n++) {
        const char *word = words[n], *value = n + 1 < count ? words[n + 1] : "";
        char *end = NULL;
        double *number = NULL;
        if (!strcmp(word, "--score")) {
            scores = 1;
            continue;
        }
        if (!strcmp(word, "--length")) number = &length;
        if (!strcmp(word, "--temperature")) number = &temperature;
        if (!strcmp(word, "--top-k")) number = &top_k;
        if (!strcmp(word, "--top-p")) number = &top_p;
        if (number) *number = strtod(value, &end);
        else if (!strcmp(word, "--seed")) seed = strtoull(value, &end, 10);
        else if (!strcmp(word, "--prompt") && n + 1 < count) prompt = value;
        else end = (char *)word;
        const double most = number == &top_p ? 1 : 1e9;
        if (end && (end == value || *end || *value == '-' || (number && !(*number >= 0 && *number <= most)))) {
            const int is_help = !strcmp(word, "--help");
            fprintf(is_help ? stdout : stderr,
                    "Usage: %s [--prompt TEXT] [--length N] [--temperature X] [--top-k K] [--top-p P] [--seed N]\n"
                    "       %s --score < TEXT\n", words[0], words[0]);
            if (!is_help) fprintf(stderr, "Error: found %s %s; allowed: the words above, with numbers\n", word, value);
            return is_help ? 0 : 2;
        }
        n++;
    }
    lm_model *m = lm_open();
    if (!m) {
        fputs("error: not enough memory\n", stderr);
        return 1;
    }
    lm_seed(m, seed);
    const int code = scores ? lm_score_text(m) : lm_write_text(m, prompt, (long)length, temperature, (int)top_k, top_p);
    free(m);
    if (!fflush(stdout) && !ferror(stdout)) return code;
    fputs("error: the output cannot be written\n", stderr);
    return 1;
}

#endif

/* The weights. Five characters stand for 32 bits, in the base of 85; the first has the lowest digit. */

{{data}}

static uint32_t lm_word(const char (*rows)[101], long index)
{
    static const char digits[] = "{{alphabet}}";
    const char *text = rows[index / 20] + index % 20 * 5;
    uint32_t bits = 0;
    for (int k = 4; k >= 0; k--) bits = bits * 85 + (uint32_t)(strchr(digits, text[k]) - digits);
    return bits;
}

static void lm_read_floats(float *out, long count, const char (*rows)[101])
{
    for (long n = 0; n < count; n++) {
        const uint32_t bits = lm_word(rows, n);
        memcpy(out + n, &bits, sizeof bits);
    }
}

static void lm_read_weights(lm_weight *out, long count, const char (*rows)[101])
{
    {{unpacked}}
}

lm_model *lm_open(void)
{
    lm_model *m = (lm_model *)calloc(1, sizeof *m);
    if (!m) return NULL;
{{reads}}
    lm_begin(m);
    return m;
}
