/* A character-level language model, written by charlm export.
 *
 *     cc -O3 model.c -lm -o model
 *     ./model --prompt "Once" --length 500 --temperature 0.7 --seed 1
 *     ./model --score < text
 *
 * It needs a C99 compiler and libm. A program of your own includes this file after `#define MODEL_NO_MAIN`, and calls
 * model_open once, then model_step for the id of each character, and model_sample. MODEL_CHARACTERS and model_id turn
 * ids into characters and back. Nothing is allocated after model_open; free(model) ends it.
 *
 * Model: {{name}}, {{weights}}
 *
 * How it works. A character is a number, its id. model_step turns it into x, {{input}}, and gives x to
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
#include <tgmath.h> /* exp(a) is expf(a) for a float */

enum {
    V = {{V}}, /* characters that the model knows; with bytes, all 256 */
    E = {{E}}, /* numbers of x */
    H = {{H}}, /* units of a layer */
    BYTES = {{bytes}}, /* whether the ids are bytes, not characters */
    RECORD_END = {{record_end}}, /* the id of the end of a line or record, if each is a text of its own; or -1 */
    FIRST = {{first}}, /* the id that is read where there is no prompt */
    OTHER = {{other}}, /* the id of all characters that have none; -1: the model does not know them */
    END = {{separator_bytes}} /* bytes of what ends a record in a text */
};

typedef {{weight}} weight; /* times the scale of its row */
static float value(weight w) { return w; }

/* y = W x. W has one scale for each row, and its values stand column by column, so that a compiler can multiply many
 * rows at once. Columns whose x is 0 cost nothing. */
static void multiply(float *restrict y, const weight *restrict w, const float *restrict scale, int rows, int columns,
                     const float *restrict x)
{
    for (int r = 0; r < rows; r++) y[r] = 0;
    int c = 0;
    for (; c + 4 <= columns; c += 4) {
        const float x0 = x[c], x1 = x[c + 1], x2 = x[c + 2], x3 = x[c + 3];
        const weight *restrict a = w + (size_t)c * rows, *restrict b = a + rows, *restrict d = b + rows;
        const weight *restrict e = d + rows;
        if (x0 == 0 && x1 == 0 && x2 == 0 && x3 == 0) continue;
        for (int r = 0; r < rows; r++)
            y[r] += (value(a[r]) * x0 + value(b[r]) * x1) + (value(d[r]) * x2 + value(e[r]) * x3);
    }
    for (; c < columns; c++)
        for (int r = 0; r < rows; r++) y[r] += value(w[(size_t)c * rows + r]) * x[c];
    for (int r = 0; r < rows; r++) y[r] *= scale[r];
}

{{helpers}}

{{structs}}

typedef struct {
    float logit;
    int id;
} choice;

typedef struct {
{{fields}}
    float x[E];       /* the input of the first layer */
    float y[H];       /* the output of a layer */
    float logits[V];  /* of the next character */
    choice order[V];
    double cumulated[V];
    uint32_t random[624]; /* the Mersenne Twister MT19937 (Matsumoto & Nishimura 1998) */
    int used;             /* how many of its numbers are used up */
} Model;

/* The model, at the beginning of a text; NULL if there is not enough memory. See the end of this file. */
Model *model_open(void);

/* Begin a text: set the initial state of all layers. */
void model_begin(Model *m)
{
{{begins}}
}

/* Read the character `id`. Returns the logits of the next one, which stay valid until the next step. */
const float *model_step(Model *m, int id)
{
    if (id == RECORD_END) model_begin(m);
{{steps}}
    for (int v = 0; v < V; v++) m->logits[v] += m->output_bias[v];
    return m->logits;
}

/* Start the random numbers: the same seed gives the same text, that of `charlm sample --seed`. */
void model_seed(Model *m, uint64_t seed)
{
    m->random[0] = (uint32_t)seed;
    for (int i = 1; i < 624; i++)
        m->random[i] = 1812433253u * (m->random[i - 1] ^ (m->random[i - 1] >> 30)) + (uint32_t)i;
    m->used = 624;
}

static uint32_t random_bits(Model *m)
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
static int compared(const void *first, const void *second)
{
    const choice *a = first, *b = second;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id - b->id;
}

/* Draw the id of the next character from the logits of the last step; -1 if one of them is not finite.
 * temperature: 0 takes the likeliest. top_k: among so many of the likeliest; 0 for all. top_p: among the likeliest that
 * have this probability together; 1 for all. */
int model_sample(Model *m, double temperature, int top_k, double top_p)
{
    const double high = random_bits(m) & 0x1fffff, low = random_bits(m);
    const double draw = (high * 4294967296.0 + low) / 9007199254740992.0;
    const int count = top_k > 0 && top_k < V ? top_k : V;
    double sum = 0;
    for (int v = 0; v < V; v++) {
        if (!isfinite(m->logits[v])) return -1;
        m->order[v].logit = v == OTHER ? -1e30f : m->logits[v];
        m->order[v].id = v;
    }
    qsort(m->order, V, sizeof m->order[0], compared);
    if (temperature == 0) return m->order[0].id;
    for (int k = 0; k < count; k++)
        m->cumulated[k] = sum += exp(((double)m->order[k].logit - m->order[0].logit) / temperature);
    int last = 0, drawn = 0;
    while (last < count - 1 && m->cumulated[last] / sum < top_p) last++;
    while (drawn < last && m->cumulated[drawn] / sum <= draw * (m->cumulated[last] / sum)) drawn++;
    return m->order[drawn].id;
}

{{characters}}

/* The id of a character, given its code point; -1: the model does not know it. */
int model_id(uint32_t code)
{
    for (int v = 0; v < V; v++)
        if (MODEL_CHARACTERS[v] == code) return v;
    return OTHER;
}

#ifndef MODEL_NO_MAIN

/* What ends a record in a text. The model reads it as one character, RECORD_END. */
static const unsigned char SEPARATOR[END] = { {{separator}} };

/* Bytes of a text: a string, or standard input. */
typedef struct {
    const unsigned char *string; /* NULL: standard input */
    int ahead[END + 1];          /* the next bytes; -1 at the end */
    long position;               /* how many characters were read */
} Text;

static int read_byte(Text *t)
{
    if (!t->string) return getchar();
    return *t->string ? *t->string++ : -1;
}

static int next_byte(Text *t)
{
    const int byte = t->ahead[0];
    memmove(t->ahead, t->ahead + 1, END * sizeof t->ahead[0]);
    t->ahead[END] = read_byte(t);
    if (RECORD_END >= 0 && t->ahead[END - 1] == '\r' && t->ahead[END] == '\n') {
        t->ahead[END - 1] = '\n';
        t->ahead[END] = read_byte(t);
    }
    return byte;
}

static Text text_of(const char *string)
{
    Text text = {(const unsigned char *)string, {0}, 0};
    for (int k = 0; k <= END; k++) next_byte(&text);
    return text;
}

static void fail(const char *what, long position)
{
    fprintf(stderr, "error: %s at character %ld\n", what, position);
    exit(1);
}

/* How many of the next bytes are the end of a record. Standard input may end with a part of it. */
static int end_bytes(const Text *t)
{
    int k = 0;
    while (k < END && t->ahead[k] == SEPARATOR[k]) k++;
    const int is_end = k == END || (t->ahead[k] < 0 && !t->string);
    return RECORD_END >= 0 && is_end ? k : 0;
}

/* The next id of a text; -1 at its end. */
static int next_id(Text *t)
{
    if (t->ahead[0] < 0) return -1;
    const int end = end_bytes(t);
    for (int k = 0; k < end; k++) next_byte(t);
    if (end > 0 && end < END) return -1;
    t->position++;
    if (end > 0) return RECORD_END;
    const int byte = next_byte(t);
    if (BYTES) return byte;
    const int more = byte < 0x80 ? 0 : byte >= 0xf0 && byte < 0xf8 ? 3 : byte >= 0xe0 && byte < 0xf0 ? 2 : 1;
    uint32_t code = more ? byte & (0x3f >> more) : byte;
    if (more == 1 && (byte < 0xc2 || byte >= 0xe0)) fail("found a byte that is not UTF-8", t->position);
    for (int k = 0; k < more; k++) {
        if ((t->ahead[0] & 0xc0) != 0x80 || t->ahead[0] < 0) fail("found a byte that is not UTF-8", t->position);
        code = code << 6 | (next_byte(t) & 0x3f);
    }
    if (more > 1 && code < (more == 2 ? 0x800u : 0x10000u)) fail("found a byte that is not UTF-8", t->position);
    if (code == 0xfeff && t->position == 1) return next_id(t); /* a byte order mark */
    const int id = model_id(code);
    if (id >= 0) return id;
    fprintf(stderr, "error: found U+%04lX, which the model has never seen, at character %ld\n", (unsigned long)code,
            t->position);
    exit(1);
}

static void put_character(int id)
{
    const uint32_t code = MODEL_CHARACTERS[id];
    if (BYTES || code < 0x80) {
        putchar((int)code);
        return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    putchar((int)((0xff00 >> (more + 1) & 0xff) | code >> 6 * more));
    for (int k = more - 1; k >= 0; k--) putchar((int)(0x80 | (code >> 6 * k & 0x3f)));
}

/* Write the prompt, and what the model adds to it. */
static int write_text(Model *m, const char *prompt, long length, double temperature, int top_k, double top_p)
{
    Text text = text_of(prompt);
    if (RECORD_END >= 0 || !*prompt) model_step(m, FIRST);
    for (int id; (id = next_id(&text)) >= 0;) model_step(m, id);
    fputs(prompt, stdout);
    for (long n = 0; n < length; n++) {
        const int id = model_sample(m, temperature, top_k, top_p);
        if (id < 0) fail("found logits that are not finite", n + 1);
        if (id == RECORD_END) break;
        put_character(id);
        fflush(stdout);
        model_step(m, id);
    }
    putchar('\n');
    return 0;
}

/* Read standard input, and write the mean of -log2 p of each character, given those before it. With bytes the sum over
 * the bytes of a character; the first one is given, unless it begins a line. A character begins with each byte that
 * continues none. */
static int score_text(Model *m)
{
    Text text = text_of(NULL);
    const float *logits = NULL;
    double nats = 0;
    long scored = 0, characters = 0;
    int id, last = RECORD_END;
    if (RECORD_END >= 0) logits = model_step(m, RECORD_END);
    while ((id = next_id(&text)) >= 0 || last != RECORD_END) {
        if (id < 0) id = RECORD_END; /* the last line has no end */
        const int begins = !BYTES || (id & 0xc0) != 0x80;
        if (logits && (begins || characters)) {
            double largest = logits[0], sum = 0;
            for (int v = 1; v < V; v++)
                if (logits[v] > largest) largest = logits[v];
            for (int v = 0; v < V; v++) sum += exp(logits[v] - largest);
            nats += largest + log(sum) - logits[id];
            scored++;
            characters += begins;
        }
        logits = model_step(m, id);
        last = RECORD_END >= 0 ? id : RECORD_END;
    }
    if (!scored) fail("found a text of fewer than 2 characters, which ends", text.position);
    if (!isfinite(nats)) fail("found logits that are not finite", scored);
    const double bits = nats / log(2.0);
    if (BYTES && RECORD_END < 0) printf("%.7f bits per byte, %ld bytes; ", bits / scored, scored);
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
    Model *m = model_open();
    if (!m) {
        fputs("error: not enough memory\n", stderr);
        return 1;
    }
    model_seed(m, seed);
    const int code = scores ? score_text(m) : write_text(m, prompt, (long)length, temperature, (int)top_k, top_p);
    free(m);
    if (!fflush(stdout) && !ferror(stdout)) return code;
    fputs("error: the output cannot be written\n", stderr);
    return 1;
}

#endif

/* The weights. Five characters stand for 32 bits, in the base of 85; the first has the lowest digit. */

{{data}}

static uint32_t word(const char (*rows)[101], long index)
{
    static const char digits[] = "{{alphabet}}";
    const char *text = rows[index / 20] + index % 20 * 5;
    uint32_t bits = 0;
    for (int k = 4; k >= 0; k--) bits = bits * 85 + (uint32_t)(strchr(digits, text[k]) - digits);
    return bits;
}

static void read_floats(float *out, long count, const char (*rows)[101])
{
    for (long n = 0; n < count; n++) {
        const uint32_t bits = word(rows, n);
        memcpy(out + n, &bits, sizeof bits);
    }
}

static void read_weights(weight *out, long count, const char (*rows)[101])
{
    {{unpacked}}
}

Model *model_open(void)
{
    Model *m = calloc(1, sizeof *m);
    if (!m) return NULL;
{{reads}}
    model_begin(m);
    return m;
}
