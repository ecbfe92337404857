//! Cells of recurrent layers: one position of one row.

use super::dispatch::dispatch;
use super::exponential::{sigmoid, tanh};

dispatch! {
    /// LSTM cell. `gates` (input, forget, cell, output) enters as the contribution of the input and leaves as the
    /// activated gates; `recurrent` is the contribution of the previous hidden state, `before` the previous cell
    /// state.
    pub fn lstm_cell(gates: &mut [f32], recurrent: &[f32], before: &[f32], cell: &mut [f32], hidden: &mut [f32]) {
        let units = cell.len();
        let (input, rest) = gates.split_at_mut(units);
        let (forget, rest) = rest.split_at_mut(units);
        let (candidate, output) = rest.split_at_mut(units);
        let (candidate, output) = (&mut candidate[..units], &mut output[..units]);
        let (recurrent, before, hidden) = (&recurrent[..4 * units], &before[..units], &mut hidden[..units]);
        for unit in 0..units {
            let i = sigmoid(input[unit] + recurrent[unit]);
            let f = sigmoid(forget[unit] + recurrent[units + unit]);
            let g = tanh(candidate[unit] + recurrent[2 * units + unit]);
            let o = sigmoid(output[unit] + recurrent[3 * units + unit]);
            let inner = f * before[unit] + i * g;
            (input[unit], forget[unit], candidate[unit], output[unit]) = (i, f, g, o);
            (cell[unit], hidden[unit]) = (inner, o * tanh(inner));
        }
    }
}

dispatch! {
    /// Backward pass of [`lstm_cell`]: turns activated gates into the gradient of their pre-activations.
    /// `from_hidden` and `from_cell` are the gradients from the next position; `from_cell` leaves as that for the
    /// previous one.
    pub fn lstm_cell_gradient(
        gates: &mut [f32],
        cell: &[f32],
        before: &[f32],
        delta: &[f32],
        from_hidden: &[f32],
        from_cell: &mut [f32],
    ) {
        let units = cell.len();
        let (input, rest) = gates.split_at_mut(units);
        let (forget, rest) = rest.split_at_mut(units);
        let (candidate, output) = rest.split_at_mut(units);
        let (candidate, output) = (&mut candidate[..units], &mut output[..units]);
        let (cell, before, delta) = (&cell[..units], &before[..units], &delta[..units]);
        let from_hidden = &from_hidden[..units];
        let from_cell = &mut from_cell[..units];
        for unit in 0..units {
            let (i, f, g, o) = (input[unit], forget[unit], candidate[unit], output[unit]);
            let squashed = tanh(cell[unit]);
            let hidden = delta[unit] + from_hidden[unit];
            let inner = from_cell[unit] + hidden * o * (1.0 - squashed * squashed);
            input[unit] = inner * g * i * (1.0 - i);
            forget[unit] = inner * f * (1.0 - f) * before[unit];
            candidate[unit] = inner * i * (1.0 - g * g);
            output[unit] = hidden * squashed * o * (1.0 - o);
            from_cell[unit] = inner * f;
        }
    }
}

dispatch! {
    /// GRU cell. Writes the hidden state and the activated gates (reset, update, new; then the recurrent contribution
    /// to the new state, which the backward pass needs).
    pub fn gru_cell(
        from_input: &[f32],
        from_state: &[f32],
        bias: &[f32],
        before: &[f32],
        gates: &mut [f32],
        hidden: &mut [f32],
    ) {
        let units = hidden.len();
        let (from_input, from_state) = (&from_input[..3 * units], &from_state[..3 * units]);
        let (bias, gates) = (&bias[..3 * units], &mut gates[..4 * units]);
        for unit in 0..units {
            let recurrent = |gate: usize| from_state[gate * units + unit] + bias[gate * units + unit];
            let reset = sigmoid(from_input[unit] + recurrent(0));
            let update = sigmoid(from_input[units + unit] + recurrent(1));
            let new = tanh(from_input[2 * units + unit] + reset * recurrent(2));
            let old = if before.is_empty() { 0.0 } else { before[unit] };
            hidden[unit] = (1.0 - update) * new + update * old;
            gates[unit] = reset;
            gates[units + unit] = update;
            gates[2 * units + unit] = new;
            gates[3 * units + unit] = recurrent(2);
        }
    }
}

dispatch! {
    /// Backward pass of [`gru_cell`]: the gradients of the contributions of input and previous state. `carried`
    /// enters as the gradient of the hidden state from the next position and leaves as the direct part of that for
    /// the previous one.
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
            let (new, recurrent) = (gates[2 * units + unit], gates[3 * units + unit]);
            let old = if before.is_empty() { 0.0 } else { before[unit] };
            let hidden = delta[unit] + carried[unit];
            let to_new = hidden * (1.0 - update) * (1.0 - new * new);
            let to_reset = to_new * recurrent * reset * (1.0 - reset);
            let to_update = hidden * (old - new) * update * (1.0 - update);
            from_input[unit] = to_reset;
            from_input[units + unit] = to_update;
            from_input[2 * units + unit] = to_new;
            from_state[unit] = to_reset;
            from_state[units + unit] = to_update;
            from_state[2 * units + unit] = to_new * reset;
            carried[unit] = hidden * update;
        }
    }
}
