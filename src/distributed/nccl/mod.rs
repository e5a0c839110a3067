//! NCCL: the engine between GPUs. It is loaded at run time, so that one program runs with and without it.

mod communicator;
mod engine;
mod library;

use std::sync::Arc;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::CudaContext;
use serde::{Deserialize, Serialize};

use crate::distributed::collectives::{Collectives, Watch};
use crate::distributed::control::Control;
use crate::error::{GroupError, Result};
use crate::host;
use crate::memory::recover;
use communicator::Communicator;
use engine::{Engine, check_stream};
use library::{Library, UniqueId};

/// What a rank that can use NCCL tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    version: String,
    /// A name that no other running machine has; the containers of one machine share it.
    machine: String,
    gpu: String,
    /// The name of the communicator, from rank 0.
    id: Vec<u8>,
}

/// Connects the GPUs of all ranks, which have to call this together. All have NCCL afterwards, or none for the reason that is returned.
///
/// NCCL takes some hundred MiB of the GPU outside the pool of a [`DeviceMemory`](crate::DeviceMemory), here and with the first calls: a limit
/// has to leave it that room.
///
/// # Errors
/// The same on all ranks: [`SameDevice`](crate::error::GroupError::SameDevice), and [`Different`](crate::error::GroupError::Different)
/// versions. Then [`Engine`](crate::error::GroupError::Engine) with NCCL's own error, and [`PeerLost`](crate::error::GroupError::PeerLost) on the other ranks.
pub(super) fn open(
    device: &Device,
    control: &Arc<Control>,
    watch: &Watch,
) -> Result<Result<Arc<dyn Collectives>, String>> {
    let prepared = prepare(device, control.rank() == 0);
    let own = prepared.as_ref().map(|(.., offer)| offer);
    let own = serde_json::to_vec(&own).map_err(candle_core::Error::wrap)?;
    let offers = control.gather("open NCCL", &own)?;
    let offers = offers.iter().map(|offer| serde_json::from_slice(offer));
    let offers: Vec<Result<Offer, String>> = offers
        .collect::<Result<_, _>>()
        .map_err(candle_core::Error::wrap)?;
    let offers = offers.into_iter().enumerate();
    let offers = offers
        .map(|(rank, offer)| offer.map_err(|problem| format!("on rank {rank}, {problem}")))
        .collect::<Result<Vec<_>, _>>();
    let (library, context, offers) = match (prepared, offers) {
        (Ok((library, context, _)), Ok(offers)) => (library, context, offers),
        (_, Err(reason)) | (Err(reason), _) => return Ok(Err(reason)),
    };
    check(&offers)?;
    let id = offers
        .first()
        .and_then(|first| first.id.as_slice().try_into().ok());
    let Some(id) = id else {
        return Ok(Err("rank 0 has sent no name of a communicator".to_owned()));
    };
    // NCCL cannot use what the pool keeps.
    recover(device).inspect_err(|error| control.fail(&error.to_string()))?;
    let communicator = Communicator::open(library, context, UniqueId(id), control, watch)?;
    Ok(Ok(Arc::new(Engine::new(communicator))))
}

fn prepare(device: &Device, is_first: bool) -> Result<(Library, Arc<CudaContext>, Offer), String> {
    let Device::Cuda(cuda) = device else {
        return Err("the device is not a GPU".to_owned());
    };
    let stream = cuda.cuda_stream();
    check_stream(&stream)?;
    let context = stream.context();
    let uuid = context
        .uuid()
        .map_err(|error| format!("the GPU has no UUID: {error:?}"))?;
    let library = Library::load()?;
    let id = match is_first {
        true => library.unique_id()?.0.to_vec(),
        false => Vec::new(),
    };
    let boot = Some(host::boot()).filter(|id| !id.is_empty());
    let hex = |byte: &_| format!("{:02x}", *byte as u8);
    let offer = Offer {
        version: library.version.clone(),
        machine: boot.unwrap_or_else(host::name),
        gpu: format!("GPU-{}", uuid.bytes.iter().map(hex).collect::<String>()),
        id,
    };
    Ok((library, context.clone(), offer))
}

/// Fails if ranks have other versions of NCCL than rank 0, or share a GPU.
fn check(offers: &[Offer]) -> Result<(), GroupError> {
    let own = offers.first().map_or("", |first| first.version.as_str());
    let others = offers.iter().enumerate();
    let others = others.filter(|(_, offer)| offer.version != own);
    let differences: Vec<_> = others
        .map(|(rank, offer)| format!("rank 0 has NCCL {own}, rank {rank} {}", offer.version))
        .collect();
    if !differences.is_empty() {
        let what = "the version of NCCL";
        return Err(GroupError::Different { what, differences });
    }
    for offer in offers {
        let same = offers.iter().enumerate();
        let same =
            same.filter(|(_, other)| (&other.gpu, &other.machine) == (&offer.gpu, &offer.machine));
        let ranks: Vec<_> = same.map(|(rank, _)| rank).collect();
        if ranks.len() > 1 {
            let device = offer.gpu.clone();
            return Err(GroupError::SameDevice { ranks, device });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(gpus: &[(&str, &str, &str)]) -> Vec<Offer> {
        let offer = |(machine, gpu, version): &(&str, &str, &str)| Offer {
            machine: (*machine).to_owned(),
            gpu: (*gpu).to_owned(),
            version: (*version).to_owned(),
            id: Vec::new(),
        };
        gpus.iter().map(offer).collect()
    }

    #[test]
    fn ranks_on_one_gpu_and_other_versions_are_named() {
        let fine = [
            ("a", "1", "2.27.3"),
            ("b", "1", "2.27.3"),
            ("a", "2", "2.27.3"),
        ];
        check(&offers(&fine)).unwrap();
        let same = [
            ("a", "1", "2.27.3"),
            ("a", "2", "2.27.3"),
            ("a", "1", "2.27.3"),
        ];
        let error = check(&offers(&same)).unwrap_err();
        assert!(
            matches!(&error, GroupError::SameDevice { ranks, device } if *ranks == [0, 2] && device == "1"),
            "{error}"
        );
        let versions = [("a", "1", "2.27.3"), ("a", "2", "2.18.1")];
        let error = check(&offers(&versions)).unwrap_err().to_string();
        assert!(error.contains("rank 1 2.18.1"), "{error}");
    }
}
