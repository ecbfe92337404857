//! Windows that slide over an image: sizes, steps and edges, the same for convolution and pooling.

/// How a window lies on an image, each pair as height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its size.
    pub size: [usize; 2],
    /// How far it moves.
    pub stride: [usize; 2],
    /// How many zeros stand around the image on each side.
    pub padding: [usize; 2],
    /// How far its points lie apart.
    pub dilation: [usize; 2],
}

impl Window {
    /// A dense window of that size that moves by one.
    pub fn new(size: [usize; 2]) -> Window {
        Window { size, stride: [1, 1], padding: [0, 0], dilation: [1, 1] }
    }

    /// How many places it finds on an image of that size, down and across.
    pub fn places(&self, image: [usize; 2]) -> Result<[usize; 2], String> {
        let reach =
            |axis: usize| self.dilation[axis].checked_mul(self.size[axis].checked_sub(1)?)?.checked_add(1);
        let along = |axis: usize| {
            let reach = reach(axis)?;
            let room = self.padding[axis].checked_mul(2)?.checked_add(image[axis])?;
            Some(room.checked_sub(reach)?.checked_div(self.stride[axis])? + 1)
        };
        match (along(0), along(1)) {
            (Some(down), Some(across)) => Ok([down, across]),
            _ => {
                let least = |axis: usize| {
                    let padding = self.padding[axis].saturating_mul(2);
                    reach(axis).unwrap_or(usize::MAX).saturating_sub(padding).max(1)
                };
                let (height, width) = (least(0), least(1));
                Err(format!("expected an image of at least {height}x{width}, got {}x{}", image[0], image[1]))
            }
        }
    }

    /// The point of the image under a point of the window, or nothing where that is padding.
    #[inline(always)]
    pub fn under(&self, axis: usize, place: usize, point: usize, image: usize) -> Option<usize> {
        let position = place * self.stride[axis] + point * self.dilation[axis];
        position.checked_sub(self.padding[axis]).filter(|position| *position < image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_as_usual() {
        assert_eq!(Window::new([5, 5]).places([28, 28]), Ok([24, 24]));
        let halved = Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) };
        assert_eq!(halved.places([28, 7]), Ok([14, 4]));
        let wide = Window { dilation: [2, 2], ..Window::new([3, 3]) };
        assert_eq!(wide.places([5, 6]), Ok([1, 2]));
        assert!(Window::new([5, 5]).places([4, 9]).unwrap_err().contains("at least 5x5, got 4x9"));
        assert_eq!(halved.under(0, 0, 0, 28), None);
        assert_eq!(halved.under(0, 3, 2, 28), Some(7));
    }
}
