//! Compute kernels: loops over slices in plain Rust that vectorizes (see [`dispatch`] for the choice of the instruction
//! set), and the matrix product in explicit vector instructions ([`gemm`]).

pub mod activate;
pub mod arithmetic;
pub mod attention;
pub mod columns;
pub mod dispatch;
pub mod exponential;
pub mod flush_to_zero;
pub mod gemm;
pub mod non_finite;
pub mod normalize;
pub mod pool;
pub mod prefetch;
pub mod recurrent;
pub mod reduce;
pub mod short_copy;
pub mod sparse_axpy;
pub mod unfold;
