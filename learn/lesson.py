"""Recurrent networks from scratch: RNN, LSTM and RHN in numpy, with every gradient by hand.

    python learn/lesson.py [my.txt]

Three small networks learn to guess the next character of a text, then write some. Equations and weights are charlm's.

Names: T steps · B streams of text, read side by side · V characters in the vocabulary · H hidden units · D depth.
An array called x_TB has the shape [T, B]. dx is always the gradient of the loss with respect to x.
"""

import os
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # matrices this small are faster on one core
import numpy as np


# %% 1. Characters become numbers
# The network sees a character as its place in the vocabulary. At each step it guesses the next one, so the targets y
# are the text itself, one character later. B parts of the text are read side by side; it takes hardly longer than one.
def read_text(path=None):
    """The text of a file, or else of the modules in Python's standard library."""
    files = [Path(path)] if path else sorted(Path(os.__file__).parent.glob("*.py"))
    try:
        return "".join(file.read_text(encoding="utf-8" if path else "ascii", errors="ignore") for file in files)
    except OSError as error:
        sys.exit(f"{error.filename}: cannot be read ({error.strerror}); name a text file, or none for Python's modules")


def cut_into_streams(ids, B):
    """x and y, each [steps, B]."""
    steps = (len(ids) - 1) // B
    return [part[: steps * B].reshape(B, steps).T for part in (ids, ids[1:])]


# %% 2. The loss: how surprised is it?
# The network gives each character a score, its logit. Softmax turns scores into probabilities: p = exp(logit) / Σ exp.
# The loss is the surprise −log p of the character that really came, in nats. Guessing evenly costs log V. The gradient
# of the logits is p − 1 for the character that came and p for all others: training lifts the one and lowers the rest.
def surprise(logits_TBV, y_TB):
    """The loss, summed over steps and averaged over streams, and its gradient with respect to the logits."""
    shifted = logits_TBV - logits_TBV.max(axis=-1, keepdims=True)  # so that exp cannot overflow; p stays the same
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    came = np.eye(log_p.shape[-1], dtype=log_p.dtype)[y_TB]  # 1 for the character that came, else 0
    return -(log_p * came).sum() / y_TB.shape[1], (np.exp(log_p) - came) / y_TB.shape[1]


# %% 3. RNN: a state that is rewritten at each step
#     h_t = tanh(W x_t + b + R h_{t−1} + b')
# h is all that the network remembers. x_t is one-hot: 1 at the character's place, else 0. So W x_t is a column of W,
# and `step` gets it as Wx. `back` is the step in reverse: from the gradient of the new state it finds that of all that
# went in. It adds the gradients of the weights to dw, because each step uses the same weights.
def linear_back(W, v_BI, da_BG, dW, db):
    """Backward through a = W v + b: adds to dW and db, and returns dv."""
    dW += da_BG.T @ v_BI
    db += da_BG.sum(axis=0)
    return da_BG @ W


class RNN:
    gates, states = 1, 1

    def __init__(self, H):
        self.H = H

    def weights(self, V, draw):
        G = self.gates * self.H
        return {"weight_ih": draw(G, V), "weight_hh": draw(G, self.H), "bias_ih": draw(G), "bias_hh": draw(G)}

    def step(self, w, Wx, h):
        new = np.tanh(Wx + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"])
        return (new,), (h, new)

    def back(self, w, dw, saved, d_new):
        h, new = saved
        da = d_new * (1 - new**2)  # tanh' = 1 − tanh²
        dw["bias_ih"] += da.sum(axis=0)
        return da, (linear_back(w["weight_hh"], h, da, dw["weight_hh"], dw["bias_hh"]),)


def sigmoid(v):
    return 0.5 + 0.5 * np.tanh(0.5 * v)  # σ(v) = 1 / (1 + exp(−v)), without overflow


# %% 4. LSTM: a state that is added to
#     i, f, g, o = W x_t + b + R h_{t−1} + b'
#     c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
#     h_t = σ(o) ⊙ tanh(c_t)
# In the RNN, each step back multiplies the gradient by R and by tanh'; soon little is left. The LSTM's second state c
# has a road of its own: on its way back it meets only the forget gate σ(f), which lets it through if it is near 1. The
# gate's bias starts at 1, so that the network remembers before it has learned what to forget.
class LSTM(RNN):
    gates, states = 4, 2

    def weights(self, V, draw):
        w = super().weights(V, draw)
        w["bias_ih"][self.H : 2 * self.H], w["bias_hh"][self.H : 2 * self.H] = 1, 0
        return w

    def step(self, w, Wx, h, c):
        i, f, g, o = np.split(Wx + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"], 4, axis=1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c_new = f * c + i * g
        tanh_c = np.tanh(c_new)
        return (o * tanh_c, c_new), (h, c, i, f, g, o, tanh_c)

    def back(self, w, dw, saved, dh, dc):
        h, c, i, f, g, o, tanh_c = saved
        dc = dc + dh * o * (1 - tanh_c**2)  # c_t reaches the loss through c_{t+1} and through h_t
        da_i, da_f, da_o = dc * g * i * (1 - i), dc * c * f * (1 - f), dh * tanh_c * o * (1 - o)  # σ' = σ (1 − σ)
        da = np.concatenate([da_i, da_f, dc * i * (1 - g**2), da_o], axis=1)
        dw["bias_ih"] += da.sum(axis=0)
        return da, (linear_back(w["weight_hh"], h, da, dw["weight_hh"], dw["bias_hh"]), dc * f)


# %% 5. RHN: several layers within one step
#     h_d, g_d = (W x_t, if d = 1) + R_d s_{d−1} + b_d
#     s_d = s_{d−1} + σ(g_d) ⊙ (tanh(h_d) − s_{d−1})    for d = 1…D
# From one character to the next, RNN and LSTM compute one layer. The recurrent highway network computes D of them, with
# weights of their own. The gates are what makes that trainable: where g is near 0, state and gradient pass unchanged.
class RHN(RNN):
    def __init__(self, H, D=3):
        self.H, self.D = H, D

    def weights(self, V, draw):
        D, G = self.D, 2 * self.H
        w = {"weight_ih": draw(G, V), "weight_hh": draw(D, G, self.H), "bias_hh": draw(D, G)}
        w["bias_hh"][:, self.H :] = -2  # gates nearly closed: at first, most of the state passes
        return w

    def step(self, w, Wx, s):
        saved = []
        for d in range(self.D):
            h, g = np.split((Wx if d == 0 else 0) + s @ w["weight_hh"][d].T + w["bias_hh"][d], 2, axis=1)
            h, g = np.tanh(h), sigmoid(g)
            saved.append((s, h, g))
            s = s + g * (h - s)
        return (s,), saved

    def back(self, w, dw, saved, ds):
        for d in reversed(range(self.D)):
            s, h, g = saved[d]
            da = np.concatenate([ds * g * (1 - h**2), ds * (h - s) * g * (1 - g)], axis=1)
            ds = ds * (1 - g) + linear_back(w["weight_hh"][d], s, da, dw["weight_hh"][d], dw["bias_hh"][d])
        return da, (ds,)


# %% 6. Backpropagation through time
# Forward, the loop calls `step` from the first character to the last and keeps what it saved. Backward, it calls `back`
# from the last to the first. A state gets two gradients, which add up: from its own guess and from the step after it.
class Network:
    def __init__(self, cell, V, seed=1, dtype=np.float32):
        self.cell, random, bound = cell, np.random.default_rng(seed), cell.H**-0.5
        draw = lambda *shape: random.uniform(-bound, bound, shape).astype(dtype)  # noqa: E731
        self.w = cell.weights(V, draw) | {"decoder.weight": draw(V, cell.H), "decoder.bias": np.zeros(V, dtype)}
        self.size = sum(value.size for value in self.w.values())

    def forward(self, x_TB, state=None):
        w, outputs, steps = self.w, [], []
        state = state or (np.zeros((x_TB.shape[1], self.cell.H), w["weight_ih"].dtype),) * self.cell.states
        for Wx_BG in w["weight_ih"].T[x_TB]:
            state, saved = self.cell.step(w, Wx_BG, *state)
            outputs.append(state[0])
            steps.append(saved)
        h_TBH = np.stack(outputs)
        return h_TBH @ w["decoder.weight"].T + w["decoder.bias"], state, (x_TB, h_TBH, steps)

    def backward(self, d_logits_TBV, saved):
        """The gradients of all weights, and the norm of the state's gradient at each step, the last step first."""
        x_TB, h_TBH, steps = saved
        w, dw, norms, da = self.w, {name: np.zeros_like(value) for name, value in self.w.items()}, [], []
        d_logits, h = (v.reshape(-1, v.shape[-1]) for v in (d_logits_TBV, h_TBH))
        dh = linear_back(w["decoder.weight"], h, d_logits, dw["decoder.weight"], dw["decoder.bias"])
        d_state = [np.zeros_like(h_TBH[0])] * self.cell.states
        for dh_BH, saved in zip(dh.reshape(h_TBH.shape)[::-1], steps[::-1], strict=True):
            d_state = (d_state[0] + dh_BH, *d_state[1:])
            norms.append(np.sqrt(sum((d**2).sum() for d in d_state)))
            da_BG, d_state = self.cell.back(w, dw, saved, *d_state)
            da.append(da_BG)
        one_hot = np.eye(w["weight_ih"].shape[1], dtype=h.dtype)[x_TB[::-1].ravel()]
        dw["weight_ih"] += np.concatenate(da).T @ one_hot
        return dw, norms


# %% 7. Training
# Read a window of T characters, go back through it, move each weight a little against its gradient, read on. The state
# is carried from window to window; gradients are not. Adam divides a gradient by its usual size, so that all weights
# move at a similar pace. The rate falls to 0: large steps find the way, small ones arrive.
def train(cell, x_NB, y_NB, V, updates, T=32, rate=0.01):
    network, at, losses, kind = Network(cell, V), len(x_NB), np.zeros(500), type(cell).__name__
    mean, square = ({name: np.zeros_like(value) for name, value in network.w.items()} for _ in range(2))
    for n in range(1, updates + 1):
        if at + T > len(x_NB):  # at the beginning, and when the text has been read
            at, state = 0, None
        logits, state, saved = network.forward(x_NB[at : at + T], state)
        losses[n % 500], d_logits = surprise(logits, y_NB[at : at + T])
        for name, gradient in network.backward(d_logits, saved)[0].items():
            mean[name] += 0.1 * (gradient - mean[name])
            square[name] += 0.01 * (gradient**2 - square[name])
            usual = np.sqrt(square[name] / (1 - 0.99**n)) + 1e-8  # both began at 0, which is divided out here
            network.w[name] -= rate * (1 - n / updates) * mean[name] / (1 - 0.9**n) / usual
        at += T
        if n % 500 == 0:
            print(f"{kind}: {losses.mean() / T:.2f} nats per character in updates {n - 499} to {n}")
    return network


# %% 8. Writing
# Guess, draw a character by its probability, read it as if it stood in the text. A low temperature favors the likely.
def write(network, vocabulary, prompt="\n", length=200, temperature=0.7):
    random, ids, state = np.random.default_rng(1), [*vocabulary.searchsorted(list(prompt))], None
    for place in range(len(prompt) + length - 1):
        logits, state, _ = network.forward(np.array([[ids[place]]]), state)
        if place == len(ids) - 1:  # the prompt has been read
            p = np.exp(logits[0, 0].astype(float) / temperature)
            ids.append(random.choice(len(p), p=p / p.sum()))
    return "".join(vocabulary[ids[len(prompt) :]])


# %% 9. Three networks, one text
# The last columns tell what flows back: how much of the gradient of the surprise at one character is left 1, 10 and 50
# steps before it, in the state. Where it has vanished, nothing from that long ago can be learned.
def compare(path=None, H=128, B=16, updates=1500):
    vocabulary, ids = np.unique(list(read_text(path)), return_inverse=True)
    if len(ids) < 50_000:
        sys.exit(f"{path}: {len(ids):,} characters; the lesson needs 50,000")
    V, cut = len(vocabulary), len(ids) * 9 // 10  # the last tenth is for the score
    (x, y), (x_test, y_test) = cut_into_streams(ids[:cut], B), cut_into_streams(ids[cut:][:32_001], 64)
    print(f"{len(ids):,} characters, {V} different ones: guessing evenly costs {np.log(V):.2f} nats")
    rows = ["cell  parameters   nats   share of the gradient left 1, 10, 50 steps back"]
    for cell in RNN(H), LSTM(H), RHN(H):
        network, name = train(cell, x, y, V, updates), type(cell).__name__
        print(f"\n{name}, {network.size:,} parameters, writes:\n{write(network, vocabulary)}")
        logits, _, saved = network.forward(x_test)
        loss, d_logits = surprise(logits, y_test)
        d_logits[:-1] = 0  # only the surprise at the last character flows back
        norms = network.backward(d_logits, saved)[1]
        row = f"{name:5} {network.size:10,} {loss / len(x_test):6.2f}"
        rows.append(row + "".join(f"{norms[k] / norms[0]:10.0e}" for k in (1, 10, 50)))
    print("", *rows, sep="\n")
    print(f"""
Next: charlm trains the same networks, larger and faster.
  charlm train {path or "builtin:python-stdlib"} --minutes 1 --run-dir runs/lesson
  charlm look runs/lesson         each character's surprise, the units and the gates, on one page
  charlm cells show rhn           the equations of chapter 5""")


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
    else:
        compare(*(path for path in sys.argv[1:2] if path != "-f"))  # the kernel of a notebook is called with -f
