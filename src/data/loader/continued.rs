/// Where a loader continues a saved run; from [`Loader::resume`](super::Loader::resume).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Continued {
    /// What has changed since the run was saved, each with both values; empty if the loader continues exactly where it stopped. Changes are
    /// an error unless [`accept_changed_data`](super::LoaderBuilder::accept_changed_data) was called.
    pub changes: Vec<String>,
}
