//! Nearest-neighbour sampling of `Resize` and `Upsample`.

use super::attributes::Attributes;
use crate::onnx::proto::NodeProto;

/// `coordinate_transformation_mode`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CoordinateMode {
    HalfPixel,
    PytorchHalfPixel,
    Asymmetric,
    AlignCorners,
    TfHalfPixelForNn,
}

/// `nearest_mode`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NearestMode {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// Both modes with the attribute texts, for errors.
#[derive(Clone, Debug, PartialEq)]
pub struct NearestSampling {
    coordinates: (CoordinateMode, String),
    nearest: (NearestMode, String),
}

impl NearestSampling {
    /// Reads the attributes. Before operator set 11 the only mode was asymmetric with floor.
    pub fn of(node: &NodeProto, attributes: Attributes<'_>, version: i64) -> Result<NearestSampling, String> {
        let mode = attributes.string("mode", "nearest");
        if mode != "nearest" {
            return Err(format!("attribute `mode` = \"{mode}\": only \"nearest\" is supported"));
        }
        if node.op_type == "Upsample" || version < 11 {
            let (coordinates, nearest) = (CoordinateMode::Asymmetric, NearestMode::Floor);
            return Ok(NearestSampling {
                coordinates: (coordinates, String::new()),
                nearest: (nearest, String::new()),
            });
        }
        if let Some(axes) = attributes.ints("axes") {
            return Err(format!("attribute `axes` = {axes:?} is not supported; use scales for all axes"));
        }
        let mode = attributes.string("coordinate_transformation_mode", "half_pixel");
        let coordinates = match mode.as_str() {
            // They differ in the centre, which is the same for integer factors.
            "half_pixel" | "half_pixel_symmetric" => CoordinateMode::HalfPixel,
            "pytorch_half_pixel" => CoordinateMode::PytorchHalfPixel,
            "asymmetric" => CoordinateMode::Asymmetric,
            "align_corners" => CoordinateMode::AlignCorners,
            "tf_half_pixel_for_nn" => CoordinateMode::TfHalfPixelForNn,
            _ => {
                return Err(format!(
                    "attribute `coordinate_transformation_mode` = \"{mode}\" is not supported"
                ));
            }
        };
        let coordinates = (coordinates, mode);
        let mode = attributes.string("nearest_mode", "round_prefer_floor");
        let nearest = match mode.as_str() {
            "round_prefer_floor" => NearestMode::RoundPreferFloor,
            "round_prefer_ceil" => NearestMode::RoundPreferCeil,
            "floor" => NearestMode::Floor,
            "ceil" => NearestMode::Ceil,
            _ => return Err(format!("attribute `nearest_mode` = \"{mode}\" is not supported")),
        };
        Ok(NearestSampling { coordinates, nearest: (nearest, mode) })
    }

    /// Rejects modes that do not repeat each pixel of a side `factor` times.
    pub fn check(&self, side: usize, factor: usize) -> Result<(), String> {
        let repeats =
            (0..side * factor).all(|index| self.source_pixel(index, side, factor) == index / factor);
        if repeats {
            return Ok(());
        }
        let ((_, coordinates), (_, nearest)) = (&self.coordinates, &self.nearest);
        Err(format!(
            "attributes `coordinate_transformation_mode` = \"{coordinates}\" and `nearest_mode` = \"{nearest}\" \
             do not repeat each pixel {factor} times; only modes that do are supported (asymmetric with floor does)"
        ))
    }

    fn source_pixel(&self, index: usize, side: usize, factor: usize) -> usize {
        let (at, scale, result) = (index as f64, factor as f64, (side * factor) as f64);
        let coordinate = match self.coordinates.0 {
            CoordinateMode::PytorchHalfPixel if result <= 1.0 => 0.0,
            CoordinateMode::HalfPixel | CoordinateMode::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
            CoordinateMode::Asymmetric => at / scale,
            CoordinateMode::AlignCorners if result <= 1.0 => 0.0,
            CoordinateMode::AlignCorners => at * (side as f64 - 1.0) / (result - 1.0),
            CoordinateMode::TfHalfPixelForNn => (at + 0.5) / scale,
        };
        let pixel = match self.nearest.0 {
            NearestMode::RoundPreferFloor => (coordinate - 0.5).ceil(),
            NearestMode::RoundPreferCeil => (coordinate + 0.5).floor(),
            NearestMode::Floor => coordinate.floor(),
            NearestMode::Ceil => coordinate.ceil(),
        };
        (pixel.max(0.0) as usize).min(side.saturating_sub(1))
    }
}
