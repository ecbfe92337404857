//! Packs a column-major left factor into tiles.

use super::{max_tile_rows, tiles};
use std::ops::Range;

/// Inner steps that are packed for all tiles before the next ones: the source is read along its contiguous columns,
/// and the tiles are written in pieces that do not conflict for the same cache sets.
const STEPS: usize = 8;

/// Packs a left factor whose columns are contiguous and `stride` apart. In a tile, the rows of one inner step are
/// contiguous.
pub fn pack_left(target: &mut [f32], source: &[f32], stride: usize, rows: usize, depth: usize) {
    pack_tiles(target, source, stride, rows, depth, max_tile_rows());
}

/// As [`pack_left`], for tiles of at most `max_rows` rows.
pub(super) fn pack_tiles(
    target: &mut [f32],
    source: &[f32],
    stride: usize,
    rows: usize,
    depth: usize,
    max_rows: usize,
) {
    for begin in (0..depth).step_by(STEPS) {
        let steps = begin..depth.min(begin + STEPS);
        for tile in tiles(rows, max_rows) {
            let target = &mut target[tile.start * depth..][..tile.len() * depth];
            // Copies of constant size are inlined.
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
    first_row: usize,
    steps: Range<usize>,
) {
    let packed = target.as_chunks_mut::<ROWS>().0;
    for step in steps {
        if let Some(from) = source[step * stride + first_row..].first_chunk::<ROWS>() {
            packed[step] = *from;
        }
    }
}
