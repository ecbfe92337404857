//! A terminal that leaves the cursor in the first column after each drawing.
//!
//! The bar fills its lines to the right edge. A `^C` echoed there would start a new line, and the bar would be cleared
//! one line too low.

use indicatif::TermLike;
use std::io::Result;

/// Forwards all calls, and moves the cursor to the first column on `flush`.
#[derive(Debug)]
pub(super) struct CursorHome<T>(pub T);

impl<T: TermLike> TermLike for CursorHome<T> {
    fn width(&self) -> u16 {
        self.0.width()
    }
    fn height(&self) -> u16 {
        self.0.height()
    }
    fn move_cursor_up(&self, lines: usize) -> Result<()> {
        self.0.move_cursor_up(lines)
    }
    fn move_cursor_down(&self, lines: usize) -> Result<()> {
        self.0.move_cursor_down(lines)
    }
    fn move_cursor_right(&self, columns: usize) -> Result<()> {
        self.0.move_cursor_right(columns)
    }
    fn move_cursor_left(&self, columns: usize) -> Result<()> {
        self.0.move_cursor_left(columns)
    }
    fn write_line(&self, text: &str) -> Result<()> {
        self.0.write_line(text)
    }
    fn write_str(&self, text: &str) -> Result<()> {
        self.0.write_str(text)
    }
    fn clear_line(&self) -> Result<()> {
        self.0.clear_line()
    }
    fn flush(&self) -> Result<()> {
        self.0.write_str("\r")?;
        self.0.flush()
    }
}
