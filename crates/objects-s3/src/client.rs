//! Clients of HTTP that send a request once: they follow no redirection and repeat nothing.

use std::sync::Arc;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{ClientConfigKey, HttpClient, HttpConnector};
use objects::{ObjectsError, Result};
use reqwest::{Client, ClientBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::config::Timeouts;
use crate::environment::Environment;

/// The idle connections to a server that are kept: as many as there are concurrent reads.
const KEPT: usize = 64;
/// The time after which an idle connection is closed. A server that closes it earlier is noticed,
/// unless that crosses a request: then the outcome of a put is not known, and a read is repeated.
const IDLE: Duration = Duration::from_secs(30);
/// The time within which a metadata service of the instance answers, if there is one.
const METADATA: Duration = Duration::from_secs(1);

/// The trust in the certificates of servers.
#[derive(Clone)]
pub(crate) struct Trust(ClientConfig);

impl Trust {
    /// Trusts the certificates of the host and those of `AWS_CA_BUNDLE`. A host without any can use
    /// only servers without TLS.
    pub fn of(environment: &Environment) -> Result<Trust> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(file) = environment.get("AWS_CA_BUNDLE") {
            let invalid = |_| {
                ObjectsError::Invalid(format!(
                    "the file {file} of AWS_CA_BUNDLE cannot be read as certificates in PEM"
                ))
            };
            for certificate in CertificateDer::pem_file_iter(file).map_err(invalid)? {
                let certificate = certificate.map_err(invalid)?;
                roots.add(certificate).map_err(|error| {
                    ObjectsError::Invalid(format!(
                        "a certificate in the file {file} of AWS_CA_BUNDLE is wrong: {error}"
                    ))
                })?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ObjectsError::Invalid(format!("TLS cannot be used: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Trust(config))
    }

    /// Returns a builder of an HTTP/1.1 client, in which each connection carries one request at a
    /// time: no request is returned by the server to be sent again.
    fn client(&self, timeouts: Timeouts) -> ClientBuilder {
        Client::builder()
            .tls_backend_preconfigured(self.0.clone())
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .user_agent(concat!("kvfs/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeouts.connect)
            .timeout(timeouts.request)
            .pool_max_idle_per_host(KEPT)
            .pool_idle_timeout(IDLE)
    }
}

fn built(builder: ClientBuilder) -> Result<Client> {
    // Only the proxies that the environment names can be wrong, and they may contain passwords, so
    // the error is left out.
    builder.build().map_err(|_| {
        ObjectsError::Invalid(
            "no client of HTTP can be made; check the proxies that are set".into(),
        )
    })
}

/// Creates the client of a bucket.
pub(crate) fn of_bucket(trust: &Trust, timeouts: Timeouts) -> Result<Client> {
    built(trust.client(timeouts))
}

/// The clients that fetch credentials.
#[derive(Debug)]
pub(crate) struct Connector {
    /// The client for services of the instance: without a proxy, and without TLS.
    metadata: Client,
    /// The client for the service of tokens.
    tokens: Client,
}

impl Connector {
    pub fn new(trust: &Trust, timeouts: Timeouts) -> Result<Connector> {
        let near = Timeouts { connect: METADATA, ..timeouts };
        Ok(Connector {
            metadata: built(trust.client(near).no_proxy())?,
            tokens: built(trust.client(timeouts).https_only(true))?,
        })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The library allows requests without TLS exactly for services of the instance.
        let near = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        Ok(HttpClient::new(if near { self.metadata.clone() } else { self.tokens.clone() }))
    }
}
