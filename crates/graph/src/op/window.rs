//! Sliding windows over images, for convolution and pooling.

/// Geometry of a sliding window, each pair as height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub size: [usize; 2],
    pub stride: [usize; 2],
    /// Zeros on each side of the image.
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
}

impl Window {
    /// A window with stride 1, without padding and dilation.
    pub fn new(size: [usize; 2]) -> Window {
        Window { size, stride: [1, 1], padding: [0, 0], dilation: [1, 1] }
    }

    /// Height and width of the output: the positions of the window on an image of this size.
    pub fn output_size(&self, image: [usize; 2]) -> Result<[usize; 2], String> {
        let extent =
            |axis: usize| self.dilation[axis].checked_mul(self.size[axis].checked_sub(1)?)?.checked_add(1);
        let along = |axis: usize| {
            let extent = extent(axis)?;
            let padded = self.padding[axis].checked_mul(2)?.checked_add(image[axis])?;
            Some(padded.checked_sub(extent)?.checked_div(self.stride[axis])? + 1)
        };
        match (along(0), along(1)) {
            (Some(down), Some(across)) => Ok([down, across]),
            _ => {
                let minimum = |axis: usize| {
                    let padding = self.padding[axis].saturating_mul(2);
                    extent(axis).unwrap_or(usize::MAX).saturating_sub(padding).max(1)
                };
                let (height, width) = (minimum(0), minimum(1));
                Err(format!("expected an image of at least {height}x{width}, got {}x{}", image[0], image[1]))
            }
        }
    }

    /// The coordinate in the image of `point` of the window at `position`, along an axis; `None` for padding.
    #[inline(always)]
    pub fn input_index(&self, axis: usize, position: usize, point: usize, image: usize) -> Option<usize> {
        let padded = position * self.stride[axis] + point * self.dilation[axis];
        padded.checked_sub(self.padding[axis]).filter(|index| *index < image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_sizes_match_the_usual_formula() {
        assert_eq!(Window::new([5, 5]).output_size([28, 28]), Ok([24, 24]));
        let halved = Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) };
        assert_eq!(halved.output_size([28, 7]), Ok([14, 4]));
        let wide = Window { dilation: [2, 2], ..Window::new([3, 3]) };
        assert_eq!(wide.output_size([5, 6]), Ok([1, 2]));
        assert!(Window::new([5, 5]).output_size([4, 9]).unwrap_err().contains("at least 5x5, got 4x9"));
        assert_eq!(halved.input_index(0, 0, 0, 28), None);
        assert_eq!(halved.input_index(0, 3, 2, 28), Some(7));
    }
}
