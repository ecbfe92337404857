//! What is reduced, and how: element types and operators, both open.

use bytemuck::Pod;

/// Something that can travel as it lies in memory. Any plain type can be one.
pub trait Element: Pod + Send + Sync {}

impl<T: Pod + Send + Sync> Element for T {}

/// How two contributions become one.
///
/// `combine` must be associative up to rounding and commutative to the bit: some algorithms compute `a + b` on one rank
/// and `b + a` on another, and both must hold the same.
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

/// The sum.
#[derive(Clone, Copy, Debug)]
pub struct Sum;

/// The smaller one; of floating-point numbers by their total order, so that zeros of both signs and NaN have a place.
#[derive(Clone, Copy, Debug)]
pub struct Min;

/// The larger one, likewise.
#[derive(Clone, Copy, Debug)]
pub struct Max;

/// An element with arithmetic: what [`Sum`], [`Min`] and [`Max`] need. Whole numbers wrap around.
pub trait Number: Element {
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The smaller one.
    fn smaller(self, other: Self) -> Self;
    /// The larger one.
    fn larger(self, other: Self) -> Self;

    /// The same numbers, if they are of single precision: all that a transport's own sum takes.
    fn singles(_numbers: &mut [Self]) -> Option<&mut [f32]> {
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

macro_rules! whole {
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
        fn singles(numbers: &mut [f32]) -> Option<&mut [f32]> {
            Some(numbers)
        }
    }
    f64
}
whole!(u8 i32 u32 i64 u64);

/// A plain loop that the compiler vectorises.
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
    fn smaller_and_larger_do_not_depend_on_the_order() {
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
    fn whole_numbers_wrap_around() {
        let mut mine = [250u8, 3];
        Sum.combine(&mut mine, &[10, 4]);
        assert_eq!(mine, [4, 7]);
    }
}
