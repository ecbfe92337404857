//! Element types and reduction operators; both can be extended.

use bytemuck::Pod;

/// An element of a buffer, sent as it is in memory: any plain type.
pub trait Element: Pod + Send + Sync {}

impl<T: Pod + Send + Sync> Element for T {}

/// Combines two contributions.
///
/// `combine` must be associative up to rounding and commutative to the bit: some algorithms compute `a + b` on one rank
/// and `b + a` on another, and all ranks must end with the same bits.
pub trait Operator<T: Element>: Send + Sync {
    /// `mine[i] = mine[i] combined with arrived[i]`; both have the same length.
    fn combine(&self, mine: &mut [T], arrived: &[T]);
}

/// Any function of two slices is an operator.
impl<T: Element, F: Fn(&mut [T], &[T]) + Send + Sync> Operator<T> for F {
    fn combine(&self, mine: &mut [T], arrived: &[T]) {
        self(mine, arrived);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Sum;

/// The minimum; of floating-point numbers by their total order, which includes zeros of both signs and NaN.
#[derive(Clone, Copy, Debug)]
pub struct Min;

/// The maximum, by the same order as [`Min`].
#[derive(Clone, Copy, Debug)]
pub struct Max;

/// The arithmetic of [`Sum`], [`Min`] and [`Max`]. Integers wrap around.
pub trait Number: Element {
    fn plus(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;

    /// The slice as `f32`, the only type that a transport's own all-reduce supports; `None` for other types.
    fn as_f32_mut(_numbers: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
}

macro_rules! floating_point {
    ($($type:ty $({ $($more:item)+ })?)+) => {$(
        impl Number for $type {
            $($($more)+)?
            fn plus(self, other: Self) -> Self { self + other }
            fn smaller(self, other: Self) -> Self { if other.total_cmp(&self).is_lt() { other } else { self } }
            fn larger(self, other: Self) -> Self { if other.total_cmp(&self).is_gt() { other } else { self } }
        }
    )+};
}

macro_rules! integer {
    ($($type:ty)+) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn larger(self, other: Self) -> Self { self.max(other) }
        }
    )+};
}

floating_point! {
    f32 {
        fn as_f32_mut(numbers: &mut [f32]) -> Option<&mut [f32]> {
            Some(numbers)
        }
    }
    f64
}
integer!(u8 i32 u32 i64 u64);

/// A loop that the compiler vectorises.
fn each<T: Element>(mine: &mut [T], arrived: &[T], combined: impl Fn(T, T) -> T) {
    for (mine, arrived) in mine.iter_mut().zip(arrived) {
        *mine = combined(*mine, *arrived);
    }
}

impl<T: Number> Operator<T> for Sum {
    fn combine(&self, mine: &mut [T], arrived: &[T]) {
        each(mine, arrived, T::plus);
    }
}

impl<T: Number> Operator<T> for Min {
    fn combine(&self, mine: &mut [T], arrived: &[T]) {
        each(mine, arrived, T::smaller);
    }
}

impl<T: Number> Operator<T> for Max {
    fn combine(&self, mine: &mut [T], arrived: &[T]) {
        each(mine, arrived, T::larger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn min_and_max_do_not_depend_on_the_order() {
        let bits = |operator: &dyn Operator<f32>, a: f32, b: f32| {
            let (mut one, mut other) = ([a], [b]);
            operator.combine(&mut one, &[b]);
            operator.combine(&mut other, &[a]);
            assert_eq!(one[0].to_bits(), other[0].to_bits());
            one[0]
        };
        assert!(bits(&Min, 0.0, -0.0).is_sign_negative());
        assert!(bits(&Max, 0.0, -0.0).is_sign_positive());
        assert!(bits(&Max, f32::NAN, 1.0).is_nan());
        assert_eq!(bits(&Sum, 1.5, 2.0), 3.5);
    }

    #[test]
    fn integers_wrap_around() {
        let mut mine = [250u8, 3];
        Sum.combine(&mut mine, &[10, 4]);
        assert_eq!(mine, [4, 7]);
    }
}
