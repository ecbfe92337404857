//! The order of a tensor's values in a file, where it differs from memory.
//!
//! Images lie in memory with channels last; files follow PyTorch and ONNX, which have them first. Values are permuted
//! only when a file is written or read.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOrder {
    /// A convolution's weight: `[filters, height, width, channels]` in memory, `[filters, channels, height, width]` in
    /// a file.
    ChannelsFirst,
    /// The same sizes, with the indices along some axes permuted.
    #[serde(rename = "places")]
    Permuted {
        /// The sizes of the tensor, or of another view of the same values.
        sizes: Vec<usize>,
        /// Per axis, the index in memory of each index in the file; empty where both have the same order.
        #[serde(rename = "places")]
        permutations: Vec<Vec<u32>>,
    },
}

impl FileOrder {
    /// The sizes in a file of a tensor that has these in memory.
    pub fn shape(&self, shape: &[usize]) -> Vec<usize> {
        match (self, shape) {
            (FileOrder::ChannelsFirst, &[filters, height, width, channels]) => {
                vec![filters, channels, height, width]
            }
            _ => shape.to_vec(),
        }
    }

    /// Permutes values from memory order into file order.
    pub fn to_file(&self, shape: &[usize], values: &[f32]) -> Vec<f32> {
        let mut stored = Vec::with_capacity(values.len());
        self.for_each_offset(shape, |offset| stored.push(values[offset]));
        stored
    }

    /// Permutes values from file order into memory order.
    pub fn to_memory(&self, shape: &[usize], stored: &[f32]) -> Vec<f32> {
        let mut values = vec![0.0; stored.len()];
        let mut next = stored.iter();
        self.for_each_offset(shape, |offset| values[offset] = next.next().copied().unwrap_or_default());
        values
    }

    /// Calls `visit` with the memory offset of each value, in file order.
    fn for_each_offset(&self, shape: &[usize], mut visit: impl FnMut(usize)) {
        match (self, shape) {
            (FileOrder::ChannelsFirst, &[filters, height, width, channels]) => {
                let points = height * width;
                for filter in 0..filters {
                    for channel in 0..channels {
                        (0..points).for_each(|point| visit((filter * points + point) * channels + channel));
                    }
                }
            }
            (FileOrder::ChannelsFirst, shape) => (0..shape.iter().product()).for_each(visit),
            (FileOrder::Permuted { sizes, permutations }, _) => {
                visit_permuted(sizes, permutations, 0, &mut visit)
            }
        }
    }
}

/// Visits, in file order, the memory offsets below one index of the outer axes.
fn visit_permuted(sizes: &[usize], permutations: &[Vec<u32>], begin: usize, visit: &mut impl FnMut(usize)) {
    let Some((size, inner)) = sizes.split_first() else { return visit(begin) };
    let stride: usize = inner.iter().product();
    let (own, rest) = permutations.split_first().map_or((&[][..], &[][..]), |(own, rest)| (own, rest));
    for index in 0..*size {
        let permuted = own.get(index).map_or(index, |permuted| *permuted as usize);
        visit_permuted(inner, rest, begin + permuted * stride, visit);
    }
}

/// The offset in a channels-last image of each number of the same image stored channels-first; empty where both orders
/// are the same.
pub fn channels_first([height, width, channels]: [usize; 3]) -> Vec<u32> {
    let points = height * width;
    if points <= 1 || channels <= 1 {
        return Vec::new();
    }
    let offset = |channel| move |point| (point * channels + channel) as u32;
    (0..channels).flat_map(|channel| (0..points).map(offset(channel))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(len: usize) -> Vec<f32> {
        (0..len).map(|number| number as f32).collect()
    }

    #[test]
    fn filters_have_their_channels_first() {
        let shape = [1, 1, 2, 3];
        assert_eq!(FileOrder::ChannelsFirst.shape(&shape), [1, 3, 1, 2]);
        let stored = FileOrder::ChannelsFirst.to_file(&shape, &count(6));
        assert_eq!(stored, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(FileOrder::ChannelsFirst.to_memory(&shape, &stored), count(6));
    }

    #[test]
    fn permuted_axes_are_inverted() {
        let image = [1, 2, 2];
        assert_eq!(channels_first(image), [0, 2, 1, 3]);
        let order = FileOrder::Permuted {
            sizes: vec![2, 4, 1],
            permutations: vec![vec![1, 0], channels_first(image)],
        };
        let stored = order.to_file(&[2, 4], &count(8));
        assert_eq!(stored, [4.0, 6.0, 5.0, 7.0, 0.0, 2.0, 1.0, 3.0]);
        assert_eq!(order.to_memory(&[2, 4], &stored), count(8));
    }

    #[test]
    fn one_channel_or_one_point_has_one_order() {
        assert!(channels_first([5, 7, 1]).is_empty() && channels_first([1, 1, 9]).is_empty());
    }
}
