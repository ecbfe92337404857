//! A left factor cut into the tiles of a sweep.

use super::{most_rows, tiles};
use std::ops::Range;

/// Numbers of each row that are written before the next tile's turn: lines are read through, and tiles are written in
/// pieces that do not fight for the same places of a cache.
const STEPS: usize = 8;

/// Writes a left factor that lies column by column, `stride` apart, tile by tile; in a tile, step by step.
pub fn tile_up(target: &mut [f32], source: &[f32], stride: usize, rows: usize, depth: usize) {
    tile_up_by(target, source, stride, rows, depth, most_rows());
}

/// The same for tiles of at most so many rows.
pub(super) fn tile_up_by(
    target: &mut [f32],
    source: &[f32],
    stride: usize,
    rows: usize,
    depth: usize,
    most: usize,
) {
    for begin in (0..depth).step_by(STEPS) {
        let steps = begin..depth.min(begin + STEPS);
        for tile in tiles(rows, most) {
            let target = &mut target[tile.start * depth..][..tile.len() * depth];
            // Sizes that the compiler knows need no call.
            match tile.len() {
                4 => copy::<4>(target, source, stride, tile.start, steps.clone()),
                5 => copy::<5>(target, source, stride, tile.start, steps.clone()),
                6 => copy::<6>(target, source, stride, tile.start, steps.clone()),
                7 => copy::<7>(target, source, stride, tile.start, steps.clone()),
                8 => copy::<8>(target, source, stride, tile.start, steps.clone()),
                few => steps.clone().for_each(|step| {
                    let from = &source[step * stride + tile.start..][..few];
                    target[step * few..][..few].copy_from_slice(from);
                }),
            }
        }
    }
}

#[inline(always)]
fn copy<const ROWS: usize>(
    target: &mut [f32],
    source: &[f32],
    stride: usize,
    first: usize,
    steps: Range<usize>,
) {
    let lines = target.as_chunks_mut::<ROWS>().0;
    for step in steps {
        if let Some(from) = source[step * stride + first..].first_chunk::<ROWS>() {
            lines[step] = *from;
        }
    }
}
