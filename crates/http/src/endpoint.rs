//! Endpoints: a handler with its path, its methods and its OpenAPI operation.
//!
//! One registration gives both the route and the documentation, so neither can be forgotten. The documentation is built
//! on demand: all schemas together take megabytes, and few clients request them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::response::Response;
use axum::routing::MethodRouter;
use utoipa::openapi::path::{HttpMethod, Operation, Paths};
use utoipa::openapi::{Components, OpenApi, RefOr, Schema};
use utoipa_axum::PathItemExt as _;

use crate::Http;

type Schemas = Vec<(String, RefOr<Schema>)>;

/// A handler with its route and its documentation.
pub(super) struct Endpoint {
    /// The operation's id: the handler's name.
    id: &'static str,
    path: String,
    methods: Vec<HttpMethod>,
    handler: MethodRouter<Http>,
    describe: fn(&mut Schemas) -> Operation,
    inputs: fn() -> Inputs,
}

/// The inputs of an operation besides its path and headers.
#[derive(Debug)]
pub(super) struct Inputs {
    /// The names of its query parameters.
    pub(super) query: Vec<String>,
    /// True if it reads a body.
    pub(super) body: bool,
}

impl Inputs {
    fn of(operation: &Operation) -> Self {
        let body = operation.request_body.is_some();
        // utoipa does not expose the fields of a parameter.
        let parameters = serde_json::to_value(&operation.parameters).unwrap_or_default();
        let query =
            parameters.as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "query");
        let names = query.filter_map(|parameter| parameter["name"].as_str());
        Self { query: names.map(str::to_owned).collect(), body }
    }
}

impl Endpoint {
    /// Creates the endpoint of a handler that `T` documents. See [`endpoints!`].
    pub(super) fn of<T, A>(id: &'static str, handler: &impl Handler<A, Http, Future = Answer>) -> Self
    where
        T: utoipa::Path + utoipa::__dev::SchemaReferences,
        A: 'static,
    {
        let methods = T::methods();
        let handler = method_router(&methods, &AnyHandler::new(handler));
        let describe = |schemas: &mut Schemas| {
            T::schemas(schemas);
            T::operation()
        };
        let inputs = || Inputs::of(&T::operation());
        Self { id, path: T::path(), methods, handler, describe, inputs }
    }
}

/// The future of a handler.
type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A handler behind a pointer. axum compiles its routing code once for each type of handler, and a start runs each copy:
/// with a type per handler, 3.4 MB more of the program were in the memory of an idle server.
#[derive(Clone)]
struct AnyHandler(Arc<dyn Fn(Request, Http) -> Answer + Send + Sync>);

impl AnyHandler {
    fn new<A: 'static>(handler: &impl Handler<A, Http, Future = Answer>) -> Self {
        let handler = handler.clone();
        Self(Arc::new(move |request, http| handler.clone().call(request, http)))
    }
}

impl Handler<(), Http> for AnyHandler {
    type Future = Answer;

    fn call(self, request: Request, http: Http) -> Answer {
        (self.0)(request, http)
    }
}

fn method_router(methods: &[HttpMethod], handler: &AnyHandler) -> MethodRouter<Http> {
    let routes = methods.iter().map(HttpMethod::to_method_filter);
    routes.fold(MethodRouter::new(), |routes, method| routes.on(method, handler.clone()))
}

/// Creates the endpoints of handlers that have `#[utoipa::path]`.
macro_rules! endpoints {
    ($($module:ident :: $handler:ident),+ $(,)?) => {
        utoipa_axum::paste! {
            vec![$($crate::endpoint::Endpoint::of::<$module::[<__path_ $handler>], _>(
                stringify!($handler),
                &$module::$handler,
            )),+]
        }
    };
}
pub(super) use endpoints;

/// Builds the router of these endpoints.
pub(super) fn router(endpoints: Vec<Endpoint>) -> Router<Http> {
    endpoints
        .into_iter()
        .fold(Router::new(), |router, endpoint| router.route(&endpoint.path, endpoint.handler))
}

/// Builds the OpenAPI document of these endpoints.
pub(super) fn describe(endpoints: Vec<Endpoint>) -> OpenApi {
    let (mut paths, mut components, mut schemas) = (Paths::new(), Components::new(), Schemas::new());
    for endpoint in endpoints {
        let operation = (endpoint.describe)(&mut schemas);
        paths.add_path_operation(&endpoint.path, endpoint.methods, operation);
        // Deduplicates at once: each endpoint lists every schema it refers to, most of them shared.
        components.schemas.extend(schemas.drain(..));
    }
    let mut api = OpenApi::default();
    (api.paths, api.components) = (paths, Some(components));
    api
}

/// An operation: its id, and its inputs, which are listed on first use.
#[derive(Debug)]
struct Known {
    id: Arc<str>,
    inputs: OnceLock<Inputs>,
    list_inputs: fn() -> Inputs,
}

/// Operations by path and method.
#[derive(Debug, Default)]
pub(super) struct Operations(BTreeMap<String, Vec<(Method, Arc<Known>)>>);

impl Operations {
    /// Adds the operations of `endpoints`.
    pub(super) fn extend(&mut self, endpoints: &[Endpoint]) {
        for endpoint in endpoints {
            let (id, list_inputs) = (endpoint.id.into(), endpoint.inputs);
            let known = Arc::new(Known { id, inputs: OnceLock::new(), list_inputs });
            let methods = endpoint.methods.iter().map(|method| (method_of(method), known.clone()));
            self.0.entry(endpoint.path.clone()).or_default().extend(methods);
        }
    }

    /// Adds an operation that is not in the OpenAPI document. It reads a body and no query.
    pub(super) fn add_undocumented(&mut self, id: &'static str, method: Method, path: &str) {
        let list_inputs = || Inputs { query: vec![], body: true };
        let known = Arc::new(Known { id: id.into(), inputs: OnceLock::new(), list_inputs });
        self.0.entry(path.to_owned()).or_default().push((method, known));
    }

    /// Returns the id of the operation at `path`.
    pub(super) fn id(&self, method: &Method, path: &str) -> Option<&Arc<str>> {
        self.find(method, path).map(|known| &known.id)
    }

    /// Returns the inputs of the operation at `path`.
    pub(super) fn inputs(&self, method: &Method, path: &str) -> Option<&Inputs> {
        self.find(method, path).map(|known| known.inputs.get_or_init(known.list_inputs))
    }

    fn find(&self, method: &Method, path: &str) -> Option<&Known> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(path)?.iter().find(|(known, _)| known == method).map(|(_, known)| &**known)
    }
}

fn method_of(method: &HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Delete => Method::DELETE,
        HttpMethod::Options => Method::OPTIONS,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Trace => Method::TRACE,
    }
}
