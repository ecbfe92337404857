//! One position of one row of a recurrent layer.

use super::dispatch::dispatch;
use super::exponential::{sigmoid, tanh};

dispatch! {
    /// Opens the gates (input, forget, cell, output, in place) of what a position reads and what it takes from the answer
    /// before it, and writes cell and answer. `before` is the cell before it.
    pub fn lstm_cell(gates: &mut [f32], taken: &[f32], before: &[f32], cell: &mut [f32], answer: &mut [f32]) {
        let units = cell.len();
        let (input, rest) = gates.split_at_mut(units);
        let (forget, rest) = rest.split_at_mut(units);
        let (candidate, output) = rest.split_at_mut(units);
        let (candidate, output) = (&mut candidate[..units], &mut output[..units]);
        let (taken, before, answer) = (&taken[..4 * units], &before[..units], &mut answer[..units]);
        for unit in 0..units {
            let i = sigmoid(input[unit] + taken[unit]);
            let f = sigmoid(forget[unit] + taken[units + unit]);
            let g = tanh(candidate[unit] + taken[2 * units + unit]);
            let o = sigmoid(output[unit] + taken[3 * units + unit]);
            let inner = f * before[unit] + i * g;
            (input[unit], forget[unit], candidate[unit], output[unit]) = (i, f, g, o);
            (cell[unit], answer[unit]) = (inner, o * tanh(inner));
        }
    }
}

dispatch! {
    /// Turns open gates into the gradient of what opened them, and carries the cell's gradient on.
    pub fn lstm_cell_gradient(
        gates: &mut [f32],
        cell: &[f32],
        before: &[f32],
        delta: &[f32],
        from_answer: &[f32],
        from_cell: &mut [f32],
    ) {
        let units = cell.len();
        let (input, rest) = gates.split_at_mut(units);
        let (forget, rest) = rest.split_at_mut(units);
        let (candidate, output) = rest.split_at_mut(units);
        let (candidate, output) = (&mut candidate[..units], &mut output[..units]);
        let (cell, before, delta) = (&cell[..units], &before[..units], &delta[..units]);
        let from_answer = &from_answer[..units];
        let from_cell = &mut from_cell[..units];
        for unit in 0..units {
            let (i, f, g, o) = (input[unit], forget[unit], candidate[unit], output[unit]);
            let squashed = tanh(cell[unit]);
            let answer = delta[unit] + from_answer[unit];
            let inner = from_cell[unit] + answer * o * (1.0 - squashed * squashed);
            input[unit] = inner * g * i * (1.0 - i);
            forget[unit] = inner * f * (1.0 - f) * before[unit];
            candidate[unit] = inner * i * (1.0 - g * g);
            output[unit] = answer * squashed * o * (1.0 - o);
            from_cell[unit] = inner * f;
        }
    }
}

dispatch! {
    /// Opens the gates (reset, update, new; then what the new state took from the old) and writes the answer.
    pub fn gru_cell(
        from_input: &[f32],
        from_state: &[f32],
        bias: &[f32],
        before: &[f32],
        gates: &mut [f32],
        answer: &mut [f32],
    ) {
        let units = answer.len();
        let (from_input, from_state) = (&from_input[..3 * units], &from_state[..3 * units]);
        let (bias, gates) = (&bias[..3 * units], &mut gates[..4 * units]);
        for unit in 0..units {
            let taken = |gate: usize| from_state[gate * units + unit] + bias[gate * units + unit];
            let reset = sigmoid(from_input[unit] + taken(0));
            let update = sigmoid(from_input[units + unit] + taken(1));
            let new = tanh(from_input[2 * units + unit] + reset * taken(2));
            let old = if before.is_empty() { 0.0 } else { before[unit] };
            answer[unit] = (1.0 - update) * new + update * old;
            gates[unit] = reset;
            gates[units + unit] = update;
            gates[2 * units + unit] = new;
            gates[3 * units + unit] = taken(2);
        }
    }
}

dispatch! {
    /// The gradients of what a position took from the input and from the state before; `carried` comes in as what the
    /// next position gave to the answer, and goes out as what passes straight to the state before.
    pub fn gru_cell_gradient(
        gates: &[f32],
        before: &[f32],
        delta: &[f32],
        carried: &mut [f32],
        from_input: &mut [f32],
        from_state: &mut [f32],
    ) {
        let units = delta.len();
        let (gates, carried) = (&gates[..4 * units], &mut carried[..units]);
        let (from_input, from_state) = (&mut from_input[..3 * units], &mut from_state[..3 * units]);
        for unit in 0..units {
            let (reset, update) = (gates[unit], gates[units + unit]);
            let (new, taken) = (gates[2 * units + unit], gates[3 * units + unit]);
            let old = if before.is_empty() { 0.0 } else { before[unit] };
            let answer = delta[unit] + carried[unit];
            let to_new = answer * (1.0 - update) * (1.0 - new * new);
            let to_reset = to_new * taken * reset * (1.0 - reset);
            let to_update = answer * (old - new) * update * (1.0 - update);
            from_input[unit] = to_reset;
            from_input[units + unit] = to_update;
            from_input[2 * units + unit] = to_new;
            from_state[unit] = to_reset;
            from_state[units + unit] = to_update;
            from_state[2 * units + unit] = to_new * reset;
            carried[unit] = answer * update;
        }
    }
}
