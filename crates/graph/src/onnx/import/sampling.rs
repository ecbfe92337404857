//! Which point of an image `Resize` and `Upsample` take for each point of their result.

use super::settings::Settings;
use crate::onnx::proto::Node;

/// How a place of the result is brought back into the image.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Coordinates {
    HalfPixel,
    HalfPixelOrFirst,
    Asymmetric,
    AlignedCorners,
    ShiftedPixel,
}

/// Which point is nearest to such a place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// What the attributes of a node say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    coordinates: (Coordinates, String),
    nearest: (Nearest, String),
}

impl Sampling {
    /// Reads the attributes. Before operator set 11 there was one way: the point at or before the place.
    pub fn of(node: &Node, settings: Settings<'_>, version: i64) -> Result<Sampling, String> {
        let mode = settings.word("mode", "nearest");
        if mode != "nearest" {
            return Err(format!("attribute `mode` = \"{mode}\": only \"nearest\" is supported"));
        }
        if node.op_type == "Upsample" || version < 11 {
            let (coordinates, nearest) = (Coordinates::Asymmetric, Nearest::Floor);
            return Ok(Sampling {
                coordinates: (coordinates, String::new()),
                nearest: (nearest, String::new()),
            });
        }
        if let Some(axes) = settings.ints("axes") {
            return Err(format!("attribute `axes` = {axes:?} is not supported; give factors for all axes"));
        }
        let word = settings.word("coordinate_transformation_mode", "half_pixel");
        let coordinates = match word.as_str() {
            // They differ in where the middle is, which is the same for whole factors.
            "half_pixel" | "half_pixel_symmetric" => Coordinates::HalfPixel,
            "pytorch_half_pixel" => Coordinates::HalfPixelOrFirst,
            "asymmetric" => Coordinates::Asymmetric,
            "align_corners" => Coordinates::AlignedCorners,
            "tf_half_pixel_for_nn" => Coordinates::ShiftedPixel,
            _ => {
                return Err(format!(
                    "attribute `coordinate_transformation_mode` = \"{word}\" is not supported"
                ));
            }
        };
        let coordinates = (coordinates, word);
        let word = settings.word("nearest_mode", "round_prefer_floor");
        let nearest = match word.as_str() {
            "round_prefer_floor" => Nearest::RoundPreferFloor,
            "round_prefer_ceil" => Nearest::RoundPreferCeil,
            "floor" => Nearest::Floor,
            "ceil" => Nearest::Ceil,
            _ => return Err(format!("attribute `nearest_mode` = \"{word}\" is not supported")),
        };
        Ok(Sampling { coordinates, nearest: (nearest, word) })
    }

    /// Refuses a way that is not to repeat each point of a side that many times.
    pub fn check(&self, side: usize, factor: usize) -> Result<(), String> {
        let repeats = (0..side * factor).all(|place| self.point(place, side, factor) == place / factor);
        if repeats {
            return Ok(());
        }
        let ((_, coordinates), (_, nearest)) = (&self.coordinates, &self.nearest);
        Err(format!(
            "attributes `coordinate_transformation_mode` = \"{coordinates}\" and `nearest_mode` = \"{nearest}\" \
             do not repeat each point {factor} times, which is what is supported (asymmetric with floor does)"
        ))
    }

    fn point(&self, place: usize, side: usize, factor: usize) -> usize {
        let (at, scale, result) = (place as f64, factor as f64, (side * factor) as f64);
        let place = match self.coordinates.0 {
            Coordinates::HalfPixelOrFirst if result <= 1.0 => 0.0,
            Coordinates::HalfPixel | Coordinates::HalfPixelOrFirst => (at + 0.5) / scale - 0.5,
            Coordinates::Asymmetric => at / scale,
            Coordinates::AlignedCorners if result <= 1.0 => 0.0,
            Coordinates::AlignedCorners => at * (side as f64 - 1.0) / (result - 1.0),
            Coordinates::ShiftedPixel => (at + 0.5) / scale,
        };
        let point = match self.nearest.0 {
            Nearest::RoundPreferFloor => (place - 0.5).ceil(),
            Nearest::RoundPreferCeil => (place + 0.5).floor(),
            Nearest::Floor => place.floor(),
            Nearest::Ceil => place.ceil(),
        };
        (point.max(0.0) as usize).min(side.saturating_sub(1))
    }
}
