/// An error of any type.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;
