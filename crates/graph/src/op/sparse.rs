//! Products of sparse features with the first weight.
//!
//! A weight is `[units, inputs]`, so the weights of one input are strided. The columns that occur in a batch are
//! therefore gathered once into a compact `[column, units]` copy; every stored value then adds a contiguous run, and
//! the gradient is scattered back the same way. The cost is proportional to the stored values, not to the width.

use thalweg_core::Features;

const ABSENT: u32 = u32::MAX;

/// The stored values of a batch and the weights of their columns; the memory is kept between steps.
#[derive(Clone, Debug, Default)]
pub struct SparseInput {
    /// Row `i` holds the values in `starts[i]..starts[i + 1]`.
    starts: Vec<usize>,
    /// Per value: the index of its column in `touched`.
    indices: Vec<u32>,
    values: Vec<f32>,
    /// The columns that occur in the batch.
    touched: Vec<usize>,
    /// Per input column: its index in `touched`.
    index_of: Vec<u32>,
    /// Per touched column: its weights, in the backward pass their gradient.
    compact: Vec<f32>,
}

impl SparseInput {
    /// Indexes a batch, which must have been checked against the width.
    pub fn read(&mut self, features: &Features, width: usize) {
        self.starts.clear();
        self.indices.clear();
        self.values.clear();
        self.index_of.resize(width, ABSENT);
        for &column in &self.touched {
            self.index_of[column] = ABSENT;
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

    /// Appends a value's column.
    fn touch(&mut self, column: usize) {
        let index = &mut self.index_of[column];
        if *index == ABSENT {
            *index = self.touched.len() as u32;
            self.touched.push(column);
        }
        self.indices.push(*index);
    }

    /// Writes the rows as dense vectors of `width` elements.
    pub fn write_dense(&self, values: &mut Vec<f32>, width: usize) {
        values.clear();
        values.resize(self.starts.len().saturating_sub(1) * width, 0.0);
        for (row, values) in self.starts.windows(2).zip(values.chunks_exact_mut(width.max(1))) {
            for value in row[0]..row[1] {
                values[self.touched[self.indices[value] as usize]] += self.values[value];
            }
        }
    }

    /// `output = features * weight^T`.
    pub fn forward(&mut self, output: &mut [f32], weight: &[f32], units: usize, inputs: usize) {
        self.compact.resize(self.touched.len() * units, 0.0);
        for (unit, row) in weight.chunks_exact(inputs).enumerate() {
            for (index, &column) in self.touched.iter().enumerate() {
                self.compact[index * units + unit] = row[column];
            }
        }
        for (row, output) in self.starts.windows(2).zip(output.chunks_exact_mut(units)) {
            output.fill(0.0);
            for (&index, &value) in self.indices[row[0]..row[1]].iter().zip(&self.values[row[0]..row[1]]) {
                let weights = &self.compact[index as usize * units..][..units];
                for (output, weight) in output.iter_mut().zip(weights) {
                    *output += value * weight;
                }
            }
        }
    }

    /// `gradient = delta^T * features`; zero for columns that do not occur.
    pub fn weight_gradient(&mut self, gradient: &mut [f32], delta: &[f32], units: usize, inputs: usize) {
        self.compact.clear();
        self.compact.resize(self.touched.len() * units, 0.0);
        for (row, delta) in self.starts.windows(2).zip(delta.chunks_exact(units)) {
            for (&index, &value) in self.indices[row[0]..row[1]].iter().zip(&self.values[row[0]..row[1]]) {
                let sums = &mut self.compact[index as usize * units..][..units];
                for (sum, delta) in sums.iter_mut().zip(delta) {
                    *sum += value * delta;
                }
            }
        }
        gradient.fill(0.0);
        for (unit, row) in gradient.chunks_exact_mut(inputs).enumerate() {
            for (index, &column) in self.touched.iter().enumerate() {
                row[column] = self.compact[index * units + unit];
            }
        }
    }
}
