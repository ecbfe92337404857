//! Loops over slices, and the heart of the matrix products. They are plain Rust that vectorises; see [`dispatch`] for how
//! the instruction set is chosen.

pub mod activate;
pub mod arithmetic;
pub mod attention;
pub mod columns;
pub mod dispatch;
pub mod exponential;
pub mod normalize;
pub mod panel;
pub mod pool;
pub mod prefetch;
pub mod recurrent;
pub mod reduce;
pub mod scattered;
pub mod short;
pub mod strange;
pub mod tiny;
pub mod unfold;
