//! What a layer does to each of its numbers after the product.

/// A function of one number. Each one's slope can be told from its result, so that only results are kept for the
/// backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// The number itself.
    #[default]
    None,
    /// `max(x, 0)`; its slope at 0 is 0.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Activation {
    /// The names a layer list may use.
    pub const NAMES: [&'static str; 3] = ["relu", "tanh", "sigmoid"];

    /// The activation of that name.
    pub fn named(name: &str) -> Option<Activation> {
        match name {
            "relu" => Some(Activation::Relu),
            "tanh" => Some(Activation::Tanh),
            "sigmoid" => Some(Activation::Sigmoid),
            _ => None,
        }
    }

    /// The name used in a layer list; nothing for [`Activation::None`].
    pub fn name(self) -> Option<&'static str> {
        match self {
            Activation::None => None,
            Activation::Relu => Some("relu"),
            Activation::Tanh => Some("tanh"),
            Activation::Sigmoid => Some("sigmoid"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_gives_itself_back() {
        for name in Activation::NAMES {
            assert_eq!(Activation::named(name).and_then(Activation::name), Some(name));
        }
        assert_eq!(Activation::named("none"), None);
    }
}
