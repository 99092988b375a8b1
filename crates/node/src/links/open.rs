//! Opens the links that the configuration requests and the machine permits.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use dipole_bpf::grant::GrantError;
use dipole_bpf::{Bpf, BpfError, BpfOptions, FastPath, has_capabilities};
use dipole_engine::AnyLink;
use dipole_link::busy_poll::BusyPolling;
use dipole_link::fault::Fault;
use dipole_link::udp::{OpenError as UdpError, Udp, UdpOptions};
use dipole_link::{Capture, Class, Link, Multihomed};

use super::LinkChoice;
use crate::config::{Config, Links, variables};
use crate::error::{OpenError, out_of_descriptors};
use crate::hosts::{Host, MAX_INTERFACES};
use dipole_driver::Clock;

/// Opens a node's link on one or more interfaces, with the configured fast path, capture and fault
/// injection.
pub(crate) fn open_link(config: &Config, clock: Clock) -> Result<(AnyLink, LinkChoice), OpenError> {
    let mut choice = LinkChoice::new(config);
    let options = udp_options(config);
    let failed = |cause: UdpError| {
        if let UdpError::NoPort { ip, ports } = cause {
            return OpenError::NoPort { bind: ip, ports };
        }
        out_of_descriptors(&cause).unwrap_or_else(|| OpenError::Link {
            bind: config.bind,
            cause: cause.to_string(),
        })
    };
    let mut refused: Option<BpfError> = None;
    let mut with_fast_path = |udp: Udp| {
        tell_of_polling(&udp);
        let at = udp.local(Class::Small).ip();
        let (link, cause) = add_fast_path(udp, config);
        match &cause {
            Some(cause) => choice.sockets.push((at, cause.to_string())),
            None if config.links == Links::Udp => {
                choice
                    .sockets
                    .push((at, format!("{}=udp", variables::LINK)));
            }
            None if !matches!(link, AnyLink::Bpf(_)) => {
                let why = "a loopback address has no bpf link";
                choice.sockets.push((at, why.to_owned()));
            }
            None => {}
        }
        refused = refused.take().or(cause);
        link
    };
    let mut link = if config.interfaces.is_empty() {
        with_fast_path(Udp::bind(config.bind, &options).map_err(failed)?)
    } else {
        let mut addresses = vec![config.bind];
        addresses.extend(&config.interfaces);
        addresses.truncate(MAX_INTERFACES);
        let interfaces = Multihomed::bind(&addresses, &options, with_fast_path).map_err(failed)?;
        warn_of_absent(&interfaces, &addresses);
        AnyLink::from(interfaces)
    };
    match refused {
        Some(cause) if config.links == Links::Bpf => {
            return Err(OpenError::Link {
                bind: config.bind,
                cause: cause.to_string(),
            });
        }
        // Without a broker there was no attempt to set up the fast path.
        Some(BpfError::NotGranted(GrantError::NoBroker { .. })) | None => {}
        Some(cause) => tracing::info!("small packets use UDP sockets: {cause}"),
    }
    if let Some(file) = &config.recordings.capture {
        let capture = Capture::create(link, file, clock.since_1970_ns()).map_err(|cause| {
            out_of_descriptors(&cause).unwrap_or_else(|| OpenError::Capture {
                file: file.clone(),
                cause: cause.to_string(),
            })
        })?;
        link = AnyLink::Capture(Box::new(capture));
    }
    if let Some(plan) = &config.fault
        && config.injects_into_link()
    {
        link = AnyLink::Fault(Box::new(Fault::new(link, plan.clone())));
    }
    Ok((link, choice))
}

fn udp_options(config: &Config) -> UdpOptions {
    let directory = config.hosts.get(config.node).map(Host::directory);
    let ports = match (config.ports, directory) {
        (Some(ports), Some(directory)) => Some(ports.without(directory.port())),
        (ports, _) => ports,
    };
    UdpOptions {
        ports,
        join_small: true,
        busy_poll: config.busy_poll,
        ..UdpOptions::default()
    }
}

/// Opens the link of an interface whose address has changed, with the same ports if they are free
/// there.
///
/// # Errors
/// The address is not usable now.
pub(super) fn open_interface(
    config: &Config,
    ip: IpAddr,
    former: [SocketAddr; 2],
) -> Result<AnyLink, UdpError> {
    let options = udp_options(config);
    let [small_port, bulk_port] = former.map(|address| address.port());
    let same = UdpOptions {
        small_port,
        bulk_port,
        ..options.clone()
    };
    let is_taken = |cause: &UdpError| matches!(cause, UdpError::Bind { source, .. } if source.kind() == ErrorKind::AddrInUse);
    let udp = match Udp::bind(ip, &same) {
        Err(cause) if is_taken(&cause) => Udp::bind(ip, &options)?,
        bound => bound?,
    };
    let (link, refused) = add_fast_path(udp, config);
    if let Some(cause) = refused.filter(|_| config.links == Links::Bpf) {
        tracing::warn!("small packets to and from {ip} use UDP sockets: {cause}");
    }
    Ok(link)
}

/// Logs which addresses are missing now.
fn warn_of_absent(link: &Multihomed<AnyLink>, addresses: &[IpAddr]) {
    for (index, address) in addresses.iter().enumerate() {
        if !link.is_in_use(index) {
            tracing::warn!(
                "{address} cannot be used yet: no interface of this machine that is up has it; it is \
                 taken into use when one does"
            );
        }
    }
}

/// Logs how well busy polling works, if it was requested.
fn tell_of_polling(udp: &Udp) {
    let at = udp.local(Class::Small).ip();
    match udp.busy_polling() {
        BusyPolling::Off | BusyPolling::Preferred => {}
        BusyPolling::WithInterrupts => tracing::info!(
            "the receive queue of {at} is polled, but interrupts still arrive: suppressing them needs \
             CAP_NET_ADMIN and Linux 5.11"
        ),
        BusyPolling::Refused(cause) => tracing::warn!(
            "{} has no effect at {at}, packets arrive by interrupts: the kernel refuses: {cause}",
            variables::BUSY_POLL
        ),
    }
}

/// Opens the fast path for an interface's small packets if it is configured and available; returns
/// the reason if not.
fn add_fast_path(udp: Udp, config: &Config) -> (AnyLink, Option<BpfError>) {
    match config.links {
        Links::Shm | Links::Udp => return (udp.into(), None),
        Links::Auto if udp.local(Class::Small).ip().is_loopback() => return (udp.into(), None),
        Links::Auto | Links::Bpf => {}
    }
    match fast_path(&udp, config) {
        Ok(fast_path) => (Bpf::new(udp, fast_path).into(), None),
        Err(cause) => (udp.into(), Some(cause)),
    }
}

/// Uses a broker's ring if one is granted, because all processes then share one program; otherwise
/// opens the fast path with this process's own capabilities.
fn fast_path(udp: &Udp, config: &Config) -> Result<FastPath, BpfError> {
    let options = BpfOptions {
        ring_bytes: config.ring_bytes,
        ..BpfOptions::default()
    };
    match FastPath::request(udp, &config.broker, &options) {
        Ok(mut fast_path) => {
            // A process that may send raw frames itself does not need the broker's socket.
            if !fast_path.can_send()
                && has_capabilities()
                && let Err(cause) = fast_path.open_tx(udp, &options)
            {
                tracing::info!("small packets are sent through the UDP socket: {cause}");
            }
            Ok(fast_path)
        }
        Err(_) if has_capabilities() => FastPath::open(udp, &options),
        Err(cause) => Err(cause),
    }
}
