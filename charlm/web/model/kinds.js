// The kinds of cells. A kind is a class with
//
//     static states             names of the vectors of a layer's state; the first is the layer's output
//     new Kind(parameters, options, zoneout)
//                               parameters: named as in the kind's reference.py; matrices are Matrix
//     inputBias                 what is added to the product of weight_ih and the input
//     step(x, state)            one step, from that sum; changes the state in place
//     static shown(state)       what people look at, where that is not the state

import { Gru } from "./gru.js";
import { Lstm } from "./lstm.js";
import { Rhn } from "./rhn.js";
import { Rnn } from "./rnn.js";
import { Slstm } from "./slstm.js";

export const KINDS = { rnn: Rnn, lstm: Lstm, gru: Gru, rhn: Rhn, slstm: Slstm };
