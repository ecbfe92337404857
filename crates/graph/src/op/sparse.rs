//! The first layer over rows that are mostly zeros.
//!
//! A weight is `[units, inputs]`, so one input's weights lie far apart. The columns that occur in a batch are
//! therefore gathered once into a compact `[column, units]` copy; every stored value then adds a contiguous run of
//! numbers, and the gradient goes the same way back. The work is that of the values stored, not of the width.

use thalweg_core::Features;

const ABSENT: u32 = u32::MAX;

/// A batch's stored values and the weights of the columns they touch; the memory is kept from step to step.
#[derive(Clone, Debug, Default)]
pub struct SparseInput {
    /// Row `i` holds the values in `starts[i]..starts[i + 1]`.
    starts: Vec<usize>,
    /// For each value, the place of its column in `touched`.
    places: Vec<u32>,
    values: Vec<f32>,
    /// The columns that occur.
    touched: Vec<usize>,
    /// For each column of the network, its place in `touched`.
    place_of: Vec<u32>,
    /// Per touched column, its weights and later their gradient.
    compact: Vec<f32>,
}

impl SparseInput {
    /// Takes in a batch that has been checked against the width.
    pub fn read(&mut self, features: &Features, width: usize) {
        self.starts.clear();
        self.places.clear();
        self.values.clear();
        self.place_of.resize(width, ABSENT);
        for &column in &self.touched {
            self.place_of[column] = ABSENT;
        }
        self.touched.clear();
        match features {
            Features::Dense(_) => {}
            Features::Sparse { starts, columns, values } => {
                self.starts.extend_from_slice(starts);
                self.values.extend_from_slice(values);
                columns.iter().for_each(|&column| self.touch(column as usize));
            }
            Features::Tokens { symbols, window, vocabulary } => {
                self.starts.extend((0..=symbols.len()).step_by((*window).max(1)));
                self.values.resize(symbols.len(), 1.0);
                for (index, &symbol) in symbols.iter().enumerate() {
                    let position = index % window;
                    self.touch(position * vocabulary + symbol as usize);
                }
            }
        }
    }

    /// Remembers that a value stands in that column.
    fn touch(&mut self, column: usize) {
        let place = &mut self.place_of[column];
        if *place == ABSENT {
            *place = self.touched.len() as u32;
            self.touched.push(column);
        }
        self.places.push(*place);
    }

    /// Writes every row out as `width` numbers.
    pub fn spell_out(&self, values: &mut Vec<f32>, width: usize) {
        values.clear();
        values.resize(self.starts.len().saturating_sub(1) * width, 0.0);
        for (row, values) in self.starts.windows(2).zip(values.chunks_exact_mut(width.max(1))) {
            for place in row[0]..row[1] {
                values[self.touched[self.places[place] as usize]] += self.values[place];
            }
        }
    }

    /// The product with the weight: bias and activation follow in one pass.
    pub fn forward(&mut self, output: &mut [f32], weight: &[f32], units: usize, inputs: usize) {
        self.compact.resize(self.touched.len() * units, 0.0);
        for (unit, row) in weight.chunks_exact(inputs).enumerate() {
            for (place, &column) in self.touched.iter().enumerate() {
                self.compact[place * units + unit] = row[column];
            }
        }
        for (row, output) in self.starts.windows(2).zip(output.chunks_exact_mut(units)) {
            output.fill(0.0);
            for (&place, &value) in self.places[row[0]..row[1]].iter().zip(&self.values[row[0]..row[1]]) {
                let weights = &self.compact[place as usize * units..][..units];
                for (output, weight) in output.iter_mut().zip(weights) {
                    *output += value * weight;
                }
            }
        }
    }

    /// Each weight's gradient, summed over the rows; zero for columns that do not occur.
    pub fn weight_gradient(&mut self, gradient: &mut [f32], delta: &[f32], units: usize, inputs: usize) {
        self.compact.clear();
        self.compact.resize(self.touched.len() * units, 0.0);
        for (row, delta) in self.starts.windows(2).zip(delta.chunks_exact(units)) {
            for (&place, &value) in self.places[row[0]..row[1]].iter().zip(&self.values[row[0]..row[1]]) {
                let sums = &mut self.compact[place as usize * units..][..units];
                for (sum, delta) in sums.iter_mut().zip(delta) {
                    *sum += value * delta;
                }
            }
        }
        gradient.fill(0.0);
        for (unit, row) in gradient.chunks_exact_mut(inputs).enumerate() {
            for (place, &column) in self.touched.iter().enumerate() {
                row[column] = self.compact[place * units + unit];
            }
        }
    }
}
